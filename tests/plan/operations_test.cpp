// SPDX-License-Identifier: Apache-2.0
// The recorded operations, compared with counts made by hand.
#include "compact/plan/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "compact/codecs/codec.h"
#include "compact/codecs/meta_device.h"
#include "compact/models/resnet/resnet.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using at::Tensor;
using testing::ElementsAre;

struct Counted {
  std::string name;
  double products, bytes;
  bool operator==(const Counted&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counted& c) {
  return out << c.name << ": " << c.products << " products, " << c.bytes << " bytes";
}

class Operations : public testing::Test {
 protected:
  static void SetUpTestSuite() { prepare_meta(c10::kCUDA); }
  void SetUp() override { prepare_meta(c10::kCUDA); }
  void TearDown() override { set_meta_device(c10::kCPU); }

  template <class F>
  static std::vector<Operation> recorded(const F& run) {
    OperationRecorder recorder;
    run();
    return recorder.take();
  }
  template <class F>
  static std::vector<Counted> counted(const F& run) {
    std::vector<Counted> all;
    for (const Operation& o : recorded(run)) all.push_back({o.name, o.products, o.bytes});
    return all;
  }
  static Tensor floats(at::IntArrayRef sizes) { return at::empty(sizes, at::device(at::kMeta)); }
  static Tensor halves(at::IntArrayRef sizes) {
    return at::empty(sizes, at::device(at::kMeta).dtype(at::kBFloat16));
  }
};

// y = x w^T with m = 6, k = 5, n = 7: 2mkn operations forward and twice as many backward.
TEST_F(Operations, LinearLayerIsThreeProducts) {
  Tensor x = floats({6, 5}).requires_grad_(), w = floats({7, 5}).requires_grad_();
  const Tensor gy = floats({6, 7});
  const Counted product{"mm", 2 * 6 * 5 * 7, 4 * (30 + 35 + 42)};
  Tensor y;
  EXPECT_THAT(counted([&] { y = at::linear(x, w); }), ElementsAre(product));
  EXPECT_THAT(counted([&] { y.backward(gy); }), ElementsAre(product, product));
}

TEST_F(Operations, LinearLayerReadsItsBias) {
  const Tensor x = halves({6, 5}), w = halves({7, 5}), b = halves({7});
  const auto all = recorded([&] { at::linear(x, w, b); });
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].products, 2 * 6 * 5 * 7);
  EXPECT_EQ(all[0].bytes, 2 * (30 + 35 + 42 + 7));
  EXPECT_EQ(all[0].type, at::kBFloat16);
}

TEST_F(Operations, BatchesOfProducts) {
  const Tensor a = floats({3, 6, 5}), b = floats({3, 5, 7});
  EXPECT_THAT(counted([&] { a.matmul(b); }),
              ElementsAre(Counted{"bmm", 3 * 2 * 6 * 5 * 7, 3 * 4 * (30 + 35 + 42)}));
}

TEST_F(Operations, ViewsAndMemoryTakeNothing) {
  const Tensor x = floats({6, 5});
  EXPECT_THAT(counted([&] {
                at::empty_like(x);
                x.t().unsqueeze(0).expand({2, 5, 6}).detach().narrow(1, 0, 2);
                x.view({30}).squeeze_().reshape({5, 6});
              }),
              ElementsAre());
}

TEST_F(Operations, InPlaceReadsAndWrites) {
  Tensor x = floats({6, 5});
  const Tensor y = floats({6, 5});
  EXPECT_THAT(counted([&] { x.add_(y); }), ElementsAre(Counted{"add_", 0, 3 * 120}));
  EXPECT_THAT(counted([&] { x.mul_(2); }), ElementsAre(Counted{"mul", 0, 2 * 120}));
  EXPECT_THAT(counted([&] { x.copy_(y); }), ElementsAre(Counted{"copy_", 0, 2 * 120}));
  EXPECT_THAT(counted([&] { x.zero_(); }), ElementsAre(Counted{"zero_", 0, 120}));
  EXPECT_THAT(counted([&] { at::add_out(x, y, y); }), ElementsAre(Counted{"add", 0, 3 * 120}));
}

TEST_F(Operations, CastsAreCopies) {
  const Tensor x = floats({6, 5});
  EXPECT_THAT(counted([&] { x.to(at::kBFloat16); }), ElementsAre(Counted{"copy_", 0, 120 + 60}));
  EXPECT_THAT(counted([&] { x.t().contiguous(); }), ElementsAre(Counted{"copy_", 0, 240}));
}

TEST_F(Operations, ExpandedTensorsAreReadOnce) {
  const Tensor row = floats({5}), x = floats({6, 5});
  EXPECT_THAT(counted([&] {
                x.add(row.expand({6, 5}));
              }),
              ElementsAre(Counted{"add", 0, 120 + 20 + 120}));
}

// Though the meta device has one operation for each tensor. 3,000 * 65,536 elements fill one launch
// of 2,240 parts and the next one in part.
TEST_F(Operations, NormsOfManyTensorsAreOne) {
  const std::vector<Tensor> few = {floats({6, 5}), floats({7})}, many(801, floats({3})),
                            large = {halves({3000, 65536})};
  const auto all = recorded([&] {
    for (const auto& list : {few, many, large}) at::_foreach_norm(list, 2, at::kFloat);
  });
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "_foreach_norm");
  EXPECT_EQ(all[0].bytes, 4 * (30 + 7 + 2));
  EXPECT_EQ(all[0].launches, 1 + 1 + 1);
  EXPECT_EQ(all[1].launches, 1 + 2 + 3);
  EXPECT_EQ(all[2].launches, 1 + 2 + 1);
}

// 3 of 1,000 rows of 5; 8 bytes an index.
TEST_F(Operations, SelectionsReadWhatIsSelected) {
  const Tensor table = floats({1000, 5}),
               rows = at::empty({3}, at::device(at::kMeta).dtype(at::kLong));
  EXPECT_THAT(counted([&] { at::embedding(table, rows); }),
              ElementsAre(Counted{"index_select", 0, 24 + 2 * 60}));
  EXPECT_THAT(counted([&] { table.index_select(0, rows); }),
              ElementsAre(Counted{"index_select", 0, 24 + 2 * 60}));
}

// Filters of 3 x 3 on 4 channels to 8, maps of 10 x 10 padded.
TEST_F(Operations, Convolutions) {
  Tensor x = floats({2, 4, 10, 10}).requires_grad_(), w = floats({8, 4, 3, 3}).requires_grad_();
  const double products = 2.0 * (2 * 8 * 100) * (4 * 9), in = 4 * 800, out = 4 * 1600,
               filter = 4 * 288;
  Tensor y;
  EXPECT_THAT(counted([&] { y = at::conv2d(x, w, {}, 1, 1); }),
              ElementsAre(Counted{"convolution", products, in + out + filter}));
  const Tensor gy = at::empty_like(y);
  EXPECT_THAT(counted([&] { y.backward(gy); }),
              ElementsAre(Counted{"convolution_backward", 2 * products,
                                  (in + out + filter) + in + filter}));
}

// 2 sequences of 16 tokens with 3 heads of 8: scores and sums are 2 products forward, 5 backward.
TEST_F(Operations, CausalAttentionIsHalf) {
  const Tensor q = halves({2, 3, 16, 8});
  const double pairs = 2 * 3 * 16 * 16;
  const auto whole = recorded([&] { at::_scaled_dot_product_flash_attention(q, q, q, 0, false); }),
             half = recorded([&] { at::_scaled_dot_product_flash_attention(q, q, q, 0, true); });
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(half.size(), 1u);
  EXPECT_EQ(whole[0].products, 2 * pairs * (8 + 8));
  EXPECT_EQ(half[0].products, pairs * (8 + 8));
  EXPECT_GE(whole[0].bytes, 4 * 2 * 2 * 3 * 16 * 8);
}

// 4 rows of 256 in 4 bits, groups of 256: 128 bytes of codes and an f32 offset and step a row.
TEST_F(Operations, CodecsAreTold) {
  const CodecPtr codec = make_codec("quantize:bits=4,group=256,scale=f32");
  const Tensor x = halves({4, 256});
  const auto all = recorded([&] {
    const Encoded e = codec->encode(x, 1);
    e.restore();
    x.add(x);
  });
  ASSERT_EQ(all.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i].name, i ? "dequantize" : "quantize");
    EXPECT_TRUE(all[i].codec);
    EXPECT_EQ(all[i].bytes, 4 * (512 + 128 + 8));
  }
  EXPECT_FALSE(all[2].codec);
}

// Means over windows and what spreads them again are LibTorch's own operations.
TEST_F(Operations, WhatCodecsCallIsTheirs) {
  const auto expect_all = [](const std::vector<Operation>& all, const char* name, Phase phase) {
    int found = 0;
    for (const Operation& o : all) {
      if (o.name != name || o.moment.phase != phase) continue;
      EXPECT_TRUE(o.codec) << name;
      ++found;
    }
    EXPECT_GT(found, 0) << name;
  };
  StepRequest r;  // its segments
  r.network = [](at::Device device) {
    return std::make_unique<Resnet>(
        ResnetConfig{.blocks = {1, 1}, .width = 8, .bottleneck = true, .classes = 10},
        Policy::preset("pool"), NetworkOptions{.device = device});
  };
  r.micro_batch = [](at::Device device, int64_t) {
    return StepInputs{{at::empty({8, 3, 64, 64}, at::device(device))},
                      at::ones({8}, at::device(device).dtype(at::kLong))};
  };
  r.optimizer.kind = &sgd_optimizer;
  r.device = c10::kCUDA;
  std::vector<Operation> operations;
  plan_step(r, &operations);
  expect_all(operations, "avg_pool2d", Phase::kForwardOf);
  expect_all(operations, "upsample_nearest2d", Phase::kBackwardOf);
  // The tensors that plain operations save: indices below 100 in a byte each.
  SavedTensorOptions options;
  options.least_elements = 1;
  const auto plain = recorded([&] {
    const SavedTensorScope scope(Policy::preset("gact-l1"), options);
    const Tensor rows = floats({100, 5}).requires_grad_(),
                 index = at::empty({7}, at::device(at::kMeta).dtype(at::kLong));
    rows.index_select(0, index).backward(floats({7, 5}));
  });
  std::vector<double> bytes;
  for (const Operation& o : plain) {
    if (o.codec) bytes.push_back(o.bytes);
  }
  EXPECT_THAT(bytes, ElementsAre(7 * 8 + 7, 7 + 7 * 8));
  // The operation that saves them is one still, though they are packed while it runs.
  EXPECT_TRUE(std::ranges::any_of(
      plain, [](const Operation& o) { return o.name == "index_select" && !o.codec; }));
}

TEST_F(Operations, OffloadedBytesGoToTheHostAndBack) {
  const CodecPtr codec = make_codec("offload");
  const Tensor x = halves({4, 256});
  const auto all = recorded([&] { codec->encode(x, 1).restore(); });
  ASSERT_EQ(all.size(), 2u);
  for (const Operation& o : all) {
    EXPECT_TRUE(o.host) << o.name;
    EXPECT_EQ(o.bytes, 2 * 4 * 256);  // each crosses the bus once
  }
  EXPECT_FALSE(recorded([&] { x.clone(); })[0].host);
}

// Neither what the step computes nor what it takes depends on being watched.
TEST_F(Operations, RecordingLeavesThePlanAsItIs) {
  for (const char* preset : {"off", "exact", "recompute", "compact", "gact-l1"}) {
    PlanRequest r = small_request(preset, at::kBFloat16, {4, 128}, small_shape());
    r.device = c10::kCUDA;
    std::vector<Operation> operations;
    const StepPlan watched = plan_step(step_request(r), &operations), plain = plan_step(r);
    EXPECT_EQ(watched.memory.peak, plain.memory.peak) << preset;
    EXPECT_EQ(watched.reserved, plain.reserved) << preset;
    EXPECT_GT(operations.size(), 50u) << preset;
  }
}

double products_of(const std::vector<Operation>& all) {
  double sum = 0;
  for (const Operation& o : all) sum += o.products;
  return sum;
}

// Blocks of a width of 64 with 4 heads and 2 of keys, 172 wide inside (176 with padding), 2 of
// them, 512 words, 4 sequences of 128: 3 times what the forward pass multiplies, attention 3.5
// times and half of it.
TEST_F(Operations, StepThatKeepsAllIsThreeForwardPasses) {
  PlanRequest r = small_request("off", at::kBFloat16, {4, 128}, small_shape());
  r.device = c10::kCUDA;
  std::vector<Operation> off, recompute;
  plan_step(step_request(r), &off);
  const double tokens = 4 * 128, layers = 2;
  const double weights = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176;
  const double attention = 2.0 * (4 * 4 * 128 * 128) * (16 + 16) / 2;
  const double forward = 2 * tokens * weights * layers;
  EXPECT_EQ(products_of(off), 3 * (forward + 2 * tokens * 64 * 512) + 3.5 * attention * layers);
  r.policy = Policy::preset("recompute");
  plan_step(step_request(r), &recompute);
  EXPECT_GT(products_of(recompute), products_of(off) + forward / 2);
  EXPECT_LE(products_of(recompute), products_of(off) + forward + attention * layers);
}

}  // namespace
}  // namespace compact
