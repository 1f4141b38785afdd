// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/block_shape.h"

#include <gmock/gmock.h>

#include <tuple>

#include "tests/temporary_folder.h"

namespace compact {
namespace {

using Numbers = std::map<std::string, double>;

Numbers changed(Numbers numbers, const Numbers& by) {
  for (const auto& [name, value] : by) numbers[name] = value;
  return numbers;
}

const Numbers kSizes = {{"hidden", 32}, {"intermediate", 44}, {"heads", 4}, {"head_dim", 8}};

TEST(BlockShape, HasTheNumbersThatAreGiven) {
  const BlockShape shape = read_block_shape("gated", changed(kSizes, {{"kv_heads", 2}}), "here");
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.eps, 1e-6);
  EXPECT_EQ(read_block_shape("pre_norm", kSizes, "here").heads, 4);
}

TEST(BlockShape, RefusesWhatNoBlockCanHave) {
  const std::tuple<const char*, Numbers, const char*> wrong[] = {
      {"gated", {}, "here: kv_heads must be positive, is 0"},
      {"gated", {{"kv_heads", -2}}, "here: kv_heads must be positive, is -2"},
      {"gated", {{"kv_heads", 3}}, "here: heads must be a multiple of kv_heads, are 4 with 3"},
      {"gated", {{"kv_heads", 2}, {"hidden", 0}}, "here: hidden must be positive, is 0"},
      {"post_norm", {{"head_dim", -8}}, "here: head_dim must be positive, is -8"},
      {"pre_norm", {{"scale", -0.5}}, "here: scale must be positive, is -0.5"},
      {"pre_norm", {{"scale", 0}}, "here: scale must be positive, is 0"},
      {"pre_norm", {{"heads", 1.5}}, "heads must be a whole number, a flag 0 or 1, is 1.5"},
      {"pre_norm", {{"kv_heads", 2}}, "here: a pre_norm block has no kv_heads"},
      {"other", {}, "here: unknown kind `other`"}};
  for (const auto& [kind, numbers, message] : wrong) {
    const auto read = [&, k = kind, &n = numbers] {
      read_block_shape(k, changed(kSizes, n), "here");
    };
    EXPECT_THAT(error_of(read), testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace compact
