// SPDX-License-Identifier: Apache-2.0
// The C++ half of tests/io/*_exchange.py: writes and reads files in the folder COMPACT_EXCHANGE.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "compact/base/check.h"
#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/io/tensorboard.h"

namespace compact {
namespace {

class Exchange : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("COMPACT_EXCHANGE");
    if (!given) GTEST_SKIP() << "run by tests/io/*_exchange.py";
    folder_ = given;
  }
  std::filesystem::path folder_;
};

TEST_F(Exchange, Safetensors) {
  NamedTensors tensors;
  for (at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                              at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor value = at::arange(15, at::kLong).reshape({3, 5});
    tensors.emplace_back(c10::toString(type),
                         type == at::kBool ? value.remainder(2).to(type) : value.sub(7).to(type));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(2.5));
  tensors.emplace_back("empty", at::empty({2, 0, 3}));
  tensors.emplace_back("transposed \"é\"", at::arange(6, at::kFloat).reshape({2, 3}).t());
  write_safetensors(folder_ / "cpp.safetensors", tensors,
                    {{"format", "pt"}, {"note", "é\n"}, {kChecksumKey, ""}});
  write_safetensors(folder_ / "none.safetensors", {});
  const SafetensorsFile python(folder_ / "python.safetensors");
  NamedTensors copies;
  for (const TensorEntry& entry : python.entries()) {
    copies.emplace_back(entry.name, python.read(entry.name));
  }
  write_safetensors(folder_ / "back.safetensors", copies, python.metadata());
}

TEST_F(Exchange, Shards) {
  const ModelWeights weights(folder_);
  NamedTensors tensors;
  for (const std::string& name : weights.names()) tensors.emplace_back(name, weights.read(name));
  std::filesystem::create_directory(folder_ / "joined");
  write_safetensors(folder_ / "joined/model.safetensors", tensors);
}

TEST_F(Exchange, TensorBoard) {
  TensorBoardWriter writer(folder_, 1000.0);
  for (int64_t step : {1, 2, 300}) {
    const std::pair<std::string, float> values[] = {
        {"train/loss", 1.0f / static_cast<float>(step)},
        {"memory/peak_bytes", static_cast<float>(step) * 1e9f}};
    writer.write(step, values, 1000.0 + static_cast<double>(step));
  }
}

}  // namespace
}  // namespace compact
