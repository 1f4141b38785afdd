// SPDX-License-Identifier: Apache-2.0
// The reads and writes of kernels by the meta backend, compared with counts made by hand.
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compact/kernels/kernel_watch.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {
namespace {

float* const kThere = reinterpret_cast<float*>(alignof(std::max_align_t));  // not null, never read
constexpr Type kHalf = Type::kBFloat16, kSingle = Type::kFloat32;

class MetaKernels : public testing::Test {
 protected:
  template <class Args>
  int64_t bytes(void (*Backend::*kernel)(const Args&, const Launch&), const Args& args) {
    std::vector<KernelCall> calls;
    const KernelWatch watch([&](const KernelCall& call) { calls.push_back(call); });
    (backend_for(Device::kMeta).*kernel)(args, Launch());
    return calls.size() == 1 ? calls[0].bytes : -1;
  }
};

// x and y of 4 rows of 8 in bf16, a root mean square a row, a weight in f32.
TEST_F(MetaKernels, NormsReadTheirWeights) {
  RmsNorm a{.rows = 4, .n = 8, .type = kHalf, .weight_type = kSingle};
  EXPECT_EQ(bytes(&Backend::rms_norm, a), 2 * 64 + 4 * 4 + 32);
  RmsNormBackward b{.rows = 4, .n = 8, .type = kHalf, .weight_type = kSingle};
  EXPECT_EQ(bytes(&Backend::rms_norm_backward, b), 3 * 64 + 16 + 32);
  b.residual = kThere;
  EXPECT_EQ(bytes(&Backend::rms_norm_backward, b), 4 * 64 + 16 + 32);
  b.gweight = kThere;
  b.parts_count = 32;
  EXPECT_EQ(bytes(&Backend::rms_norm_backward, b), 4 * 64 + 16 + 2 * 32 + 2 * 32 * 32);
}

TEST_F(MetaKernels, OptionalOperandsCountWhereTheyAre) {
  SwiGlu a{.product = kThere, .rows = 4, .m = 8, .type = kHalf};
  EXPECT_EQ(bytes(&Backend::swiglu, a), 3 * 64);
  a.silu = kThere;
  EXPECT_EQ(bytes(&Backend::swiglu, a), 4 * 64);
  // Logits of 4 rows of 100, a target, a sum and a loss a row.
  CrossEntropy c{.rows = 4, .vocabulary = 100, .type = kHalf};
  EXPECT_EQ(bytes(&Backend::cross_entropy, c), 800 + 4 * (8 + 4 + 4));
  c.log_probs = kThere;
  EXPECT_EQ(bytes(&Backend::cross_entropy, c), 800 + 1600 + 4 * (8 + 4 + 4));
}

// A weight of 10 in bf16 that is read and written, its gradient, two moments; a master in f32.
TEST_F(MetaKernels, UpdatesReadAndWriteMoments) {
  AdamW a{.count = 10, .type = kHalf, .grad_type = kHalf, .state_type = kSingle};
  EXPECT_EQ(bytes(&Backend::adamw, a), 40 + 20 + 160);
  a.master = kThere;
  EXPECT_EQ(bytes(&Backend::adamw, a), 20 + 80 + 20 + 160);
}

// 4 rows of 100 in bf16, groups of 64: 2 groups of 32 and 18 bytes in 4 bits, offset and step in
// f32.
TEST_F(MetaKernels, QuantizersCountCodesAndScales) {
  const QuantizeFormat format{.bits = 4, .group = 64, .scale = kSingle};
  const int64_t all = 4 * (200 + 32 + 18 + 2 * 8);
  EXPECT_EQ(bytes(&Backend::quantize, {.format = format, .rows = 4, .n = 100, .type = kHalf}), all);
  EXPECT_EQ(bytes(&Backend::dequantize, {.format = format, .rows = 4, .n = 100, .type = kHalf}),
            all);
  EXPECT_EQ(bytes(&Backend::bit_pack, {.count = 100, .element = 2}), 200 + 13);
}

// 4 rows of 32 in bf16 to 8; 32 signs and 8 places.
TEST_F(MetaKernels, ProjectionsReadTheirPlan) {
  const SrhtPlan plan{.n = 32, .r = 8};
  EXPECT_EQ(bytes(&Backend::srht, {.plan = plan, .rows = 4, .type = kHalf}), 4 * 80 + 4 + 32);
  EXPECT_EQ(bytes(&Backend::srht_transpose, {.plan = plan, .rows = 4, .type = kHalf}),
            4 * (16 + 128) + 4 + 32);
}

TEST_F(MetaKernels, NobodyIsToldWithoutAWatch) {
  int calls = 0;
  {
    const KernelWatch watch([&](const KernelCall&) { ++calls; });
  }
  backend_for(Device::kMeta).draw({.count = 10, .type = kHalf}, Launch());
  EXPECT_EQ(calls, 0);
}

// 48 tensors of like types at a time; none of no elements.
TEST(AdamWLaunches, AreThoseOfLikeTensorsTogether) {
  std::vector<AdamW> all(100, {.count = 5, .type = kHalf});
  const auto launches = [&] {
    return launches_of(AdamWList{all.data(), static_cast<int64_t>(all.size())});
  };
  EXPECT_EQ(launches(), 3);
  for (size_t i = 0; i < all.size(); i += 2) all[i].type = kSingle;
  EXPECT_EQ(launches(), 4);
  all[0].eps = 1;
  EXPECT_EQ(launches(), 5);
  all[0].count = 0;
  EXPECT_EQ(launches(), 4);
}

// A code of four bits an element, and a scale for 64: of four bytes, or of one and four for 256.
TEST_F(MetaKernels, Nf4ReadsItsScales) {
  Nf4Decode a{.rows = 5, .n = 4096, .x_stride = 4096, .type = kHalf};
  const int64_t count = 5 * 4096, blocks = count / 64;
  EXPECT_EQ(bytes(&Backend::nf4_decode, a), 2 * count + count / 2 + 4 * blocks);
  a.scale_codes = reinterpret_cast<const uint8_t*>(kThere);
  EXPECT_EQ(bytes(&Backend::nf4_decode, a), 2 * count + count / 2 + blocks + 4 * 2);
}

}  // namespace
}  // namespace compact::kernels
