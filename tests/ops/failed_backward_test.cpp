// SPDX-License-Identifier: Apache-2.0
// Backward passes that fail on their way, at every allocation, and what may follow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "compact/base/check.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

using BackwardGradients = std::vector<at::Tensor>;

struct FailingCase {
  std::string name;
  std::function<at::Tensor()> forward;
  std::vector<at::Tensor> inputs;
  at::Tensor gy;

  BackwardGradients backward(const at::Tensor& y, bool retain_graph = false) const {
    return torch::autograd::grad({y}, inputs, {gy}, retain_graph);
  }
};

// The fixture of all tests, and its cases, each of which makes a graph again.
class FailedBackward : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 13, kWords = 29;

  void SetUp() override {
    install_counting_allocator();
    block_ = std::make_unique<Block>(at::kFloat);
    BackwardGradients leaves = {block_->input()};
    for (Parameter* p : block_->parameters()) leaves.push_back(p->weight);
    const at::Tensor gy = block_->output_gradient();
    for (const int dropped : {0, 0b11010001, 0b11111111, 0b10101010}) {
      segments_.push_back(block_->segment(Dropped(dropped)));
      cases_.push_back({cat("block, dropped ", Dropped(dropped).to_string()),
                        [x = leaves[0], s = segments_.back().get()] { return (*s)(x); }, leaves,
                        gy});
    }
    segments_.push_back(quantized_block());
    cases_.push_back({"block, quantized",
                      [x = leaves[0], s = segments_.back().get()] {
                        s->pass.noise = 1;
                        return (*s)(x);
                      },
                      leaves, gy});
    head_.weight = noise({kWords, 8}, "head", at::kFloat).requires_grad_(true);
    const at::Tensor hidden = noise({kTokens, 8}, "hidden", at::kFloat).requires_grad_(true);
    const at::Tensor targets = at::arange(kTokens, at::kLong);
    for (const int64_t chunk : {0, 5, 64}) {
      cases_.push_back(
          {cat("loss, chunks of ", chunk),
           [=, this] { return linear_cross_entropy(hidden, head_.weight, targets, 0.1, {chunk}); },
           {hidden, head_.weight},
           at::full({}, 2.0f)});
    }
  }
  void TearDown() override { limit_cpu_bytes(std::nullopt); }

  // Everything in 4 bits but what is rebuilt from it.
  std::unique_ptr<BoundSegment> quantized_block() {
    const Treatment recompute = Treatment::parse("recompute");
    Slot slot{"attn.input", Block::kWidth, Treatment::parse("quantize:bits=4,group=32")};
    auto s = std::make_unique<BoundSegment>("block", slot);
    s->add(rms_norm_stage(1e-5), {&block_->attn_norm}, Slot{"attn.norm", Block::kWidth, recompute});
    slot.name = "attn.qkv", slot.width = Block::kQkv;
    s->add(linear_stage(), {&block_->qkv}, slot);
    s->add(attention_stage(Block::kHeads, Block::kKvHeads, Block::kDim), {},
           Slot{"attn.out", Block::kWidth, recompute});
    s->add(linear_stage(), {&block_->out});
    s->add_residual(0, Slot{"mlp.input", Block::kWidth, recompute});
    s->add(rms_norm_stage(1e-5), {&block_->mlp_norm}, Slot{"mlp.norm", Block::kWidth, recompute});
    s->add(linear_stage(), {&block_->gate_up}, Slot{"mlp.gate_up", 2 * Block::kMlp, recompute});
    slot.name = "mlp.silu", slot.width = Block::kMlp;
    s->add(swiglu_stage(Block::kMlp), {}, Slot{"mlp.product", Block::kMlp, recompute}, slot);
    s->add(linear_stage(), {&block_->down});
    s->finish();
    return s;
  }

  // Whether a backward pass within so many bytes more fails for want of memory.
  static bool fails(int64_t room, const std::function<void()>& backward) {
    limit_cpu_bytes(live_bytes(at::kCPU) + room);
    bool failed = false;
    try {
      backward();
    } catch (const OutOfMemory&) {
      failed = true;
    }
    limit_cpu_bytes(std::nullopt);
    return failed;
  }

  std::unique_ptr<Block> block_;
  std::vector<std::unique_ptr<BoundSegment>> segments_;
  Parameter head_;
  std::vector<FailingCase> cases_;
};

constexpr int64_t kStep = 448;

TEST_F(FailedBackward, WithoutRetainedGraphTheNextOneIsRefused) {
  for (const FailingCase& c : cases_) {
    int failures = 0;
    // Below what lives as well: a backward pass frees before it asks.
    for (int64_t room = -16 * kStep;; room += kStep) {
      const at::Tensor y = c.forward();
      if (!fails(room, [&] { c.backward(y); })) break;
      ++failures;
      try {
        c.backward(y);
        ADD_FAILURE() << c.name << " with room for " << room;
      } catch (const c10::Error& e) {
        ASSERT_THAT(e.what(), testing::HasSubstr("after a backward pass that failed")) << c.name;
      }
    }
    // A loss that has its gradients in the forward pass needs no memory.
    EXPECT_GE(failures, c.name.starts_with("loss, chunks of 0") ? 2
                        : c.inputs.size() > 2                   ? 10
                                                                : 0)
        << c.name;
  }
}

TEST_F(FailedBackward, WithARetainedGraphTheNextOneIsRight) {
  for (const FailingCase& c : cases_) {
    const BackwardGradients want = c.backward(c.forward());
    const at::Tensor y = c.forward();
    BackwardGradients got;
    int failures = 0;
    for (int64_t room = 0; fails(room, [&] { got = c.backward(y, true); }); room += kStep) {
      ++failures;
    }
    EXPECT_TRUE(same_bits(got, want)) << c.name << " after " << failures;
    EXPECT_TRUE(same_bits(c.backward(y, true), want)) << c.name;
    EXPECT_TRUE(same_bits(c.backward(y), want)) << c.name;
  }
}

TEST_F(FailedBackward, FreesWhatItHeld) {
  for (const FailingCase& c : cases_) {
    if (c.inputs.size() == 2) continue;
    const int64_t before = live_bytes(at::kCPU);
    const at::Tensor y = c.forward();
    ASSERT_TRUE(fails(kStep, [&] { c.backward(y); })) << c.name;
    EXPECT_EQ(live_bytes(at::kCPU), before + static_cast<int64_t>(y.nbytes())) << c.name;
  }
}

}  // namespace
}  // namespace compact
