// SPDX-License-Identifier: Apache-2.0
// The checksum that the weights of a model carry in their header.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/io/model_weights.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NamedTensors model() {
  return {{"b", at::arange(5).to(at::kBFloat16)},
          {"a", at::arange(12).to(at::kFloat).view({3, 4})},
          {"none", at::zeros({0, 3})},
          {"ids", at::arange(3)}};
}

TEST(ModelChecksum, FindsEveryFlippedBitOfTheTensors) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), model(), {{"model_type", "llama"}});
  const std::string file = (folder / "model.safetensors").string(), good = slurp(file);
  ModelWeights(folder.path()).verify();
  const int64_t data = 5 * 2 + 12 * 4 + 3 * 8;
  for (int64_t bit = 0; bit < 8 * data; ++bit) {
    std::string bad = good;
    bad[good.size() - data + bit / 8] ^= static_cast<char>(1 << bit % 8);
    spill(file, bad);
    ASSERT_THAT(error_of([&] { ModelWeights(folder.path()).verify(); }),
                AllOf(HasSubstr(file + ": is damaged"), HasSubstr("checksum")))
        << bit;
  }
}

// Names, types and shapes are in it, the order of the tensors and of their bytes is not.
TEST(ModelChecksum, IsOfTheTensorsAlone) {
  const TemporaryFolder folder;
  const auto checksum = [&](const NamedTensors& tensors) {
    write_safetensors(folder / "f", tensors, kModelMetadata);
    const SafetensorsFile file(folder / "f");
    file.verify();
    EXPECT_EQ(file.metadata().at("format"), "pt");
    return file.metadata().at(kChecksumKey);
  };
  NamedTensors tensors = model();
  const std::string first = checksum(tensors);
  EXPECT_EQ(first.size(), 16u);
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(checksum(tensors), first);
  const auto other = [&](size_t i, const std::string& name, const at::Tensor& tensor) {
    NamedTensors changed = tensors;
    changed[i] = {name, tensor};
    return checksum(changed);
  };
  EXPECT_NE(other(2, "c", tensors[2].second), first);
  EXPECT_NE(other(2, "a", tensors[2].second.view({4, 3})), first);
  EXPECT_NE(other(2, "a", tensors[2].second.view(at::kInt)), first);
  EXPECT_NE(checksum({}), first);
}

TEST(ModelChecksum, IsNotAskedOfFilesWithoutOne) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", model());
  ModelWeights(folder.path()).verify();
  EXPECT_FALSE(SafetensorsFile(folder / "model.safetensors").metadata().contains(kChecksumKey));
}

TEST(ModelChecksum, OfAnotherFileIsAnError) {
  const TemporaryFolder folder;
  Metadata stale = kModelMetadata;
  write_safetensors(folder / "f", model(), stale);
  std::string bytes = slurp(folder / "f");
  const size_t at = bytes.find(kChecksumKey) + std::string(kChecksumKey).size() + 3;
  bytes.replace(at, 16, "0123456789abcdef");
  spill(folder / "f", bytes);
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder / "f").verify(); }),
              HasSubstr("must be \"0123456789abcdef\""));
}

}  // namespace
}  // namespace compact
