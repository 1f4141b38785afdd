// SPDX-License-Identifier: Apache-2.0
// A transformer block as one segment, every slot's storage chosen, and what is compared of it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <bitset>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compact/base/philox.h"
#include "compact/ops/segments/segment.h"
#include "compact/ops/stages/stages.h"
#include "tests/ops/bound_segment.h"

namespace compact {

// The slots of a block that may be dropped, and how many stages rebuild each from the one before.
inline constexpr std::array<const char*, 8> kDroppable = {"attn.norm", "attn.qkv",   "attn.out",
                                                          "mlp.input", "mlp.norm",   "mlp.gate_up",
                                                          "mlp.silu",  "mlp.product"};
inline constexpr std::array<int, 8> kRunsToRebuild = {1, 2, 1, 2,
                                                      1, 1, 0, 1};  // silu: in its kernel
using Dropped = std::bitset<8>;
// Nothing, exact, everything, and every second slot dropped.
inline const Dropped kSome[] = {Dropped(0), Dropped(0b11010001), Dropped(0b11111111),
                                Dropped(0b01010101), Dropped(0b10101010)};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

// |got - want| / |want|
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.detach().to(at::kDouble);
  return ((got.detach().to(at::kDouble) - w).norm() / w.norm().clamp_min(1e-300)).item<double>();
}

// Normal values that depend on the label only.
inline at::Tensor noise(at::IntArrayRef sizes, const std::string& label, at::ScalarType type,
                        double scale = 1) {
  auto generator = at::detail::createCPUGenerator(label_of(label.data(), label.size()));
  return at::randn(sizes, generator, at::kDouble).mul_(scale).to(type);
}

struct Block {
  static constexpr int64_t kBatch = 2, kLength = 5, kHeads = 4, kKvHeads = 2, kDim = 6, kMlp = 37;
  static constexpr int64_t kWidth = kHeads * kDim, kQkv = (kHeads + 2 * kKvHeads) * kDim;
  static constexpr int64_t kTokens = kBatch * kLength;

  Parameter attn_norm, qkv, out, mlp_norm, gate_up, down;
  std::shared_ptr<const RopeTables> rope;
  at::ScalarType type;

  explicit Block(at::ScalarType type) : type(type) {
    rope = std::make_shared<RopeTables>(RopeTables::make({}, kDim, 16, 16, at::kCPU));
    const auto fill = [&](Parameter& p, const char* name, std::vector<int64_t> sizes) {
      p.name = name;
      p.weight = noise(sizes, name, type, sizes.size() == 1 ? 0.3 : 0.25);
      if (sizes.size() == 1) p.weight.add_(1);
      p.weight.requires_grad_(true);
    };
    fill(attn_norm, "attn.norm", {kWidth});
    fill(qkv, "attn.qkv", {kQkv, kWidth});
    fill(out, "attn.out", {kWidth, kWidth});
    fill(mlp_norm, "mlp.norm", {kWidth});
    fill(gate_up, "mlp.gate_up", {2 * kMlp, kWidth});
    fill(down, "mlp.down", {kWidth, kMlp});
  }

  std::vector<Parameter*> parameters() {
    return {&attn_norm, &qkv, &out, &mlp_norm, &gate_up, &down};
  }

  // As models build it. `sketched` slots are named in `sketch`; `drop`: the treatment of those that
  // are dropped.
  std::unique_ptr<BoundSegment> segment(Dropped dropped,
                                        const std::vector<std::string>& sketch = {},
                                        const std::string& drop = "recompute") {
    const auto slot = [&](size_t i, int64_t width) {
      std::string how = dropped[i] ? drop : "keep";
      for (const std::string& name : sketch) {
        if (name == kDroppable[i]) how = "sketch";
      }
      return Slot{kDroppable[i], width, Treatment::parse(how)};
    };
    const auto linear = [](const Parameter& p) {
      return linear_stage({.sketch_width = p.carrier ? p.carrier->width() : 0});
    };
    auto s = std::make_unique<BoundSegment>("block", Slot{"attn.input", kWidth});
    s->add(rms_norm_stage(1e-5), {&attn_norm}, slot(0, kWidth));
    s->add(linear(qkv), {&qkv});
    s->add(rope_stage(rope, kHeads + kKvHeads, kDim), {}, slot(1, kQkv));
    s->add(attention_stage(kHeads, kKvHeads, kDim), {}, slot(2, kWidth));
    s->add(linear(out), {&out});
    const int middle = s->add_residual(0, slot(3, kWidth));
    s->add(rms_norm_stage(1e-5), {&mlp_norm}, slot(4, kWidth));
    s->add(linear(gate_up), {&gate_up}, slot(5, 2 * kMlp));
    s->add(swiglu_stage(kMlp), {}, slot(7, kMlp), slot(6, kMlp));
    s->add(linear(down), {&down});
    s->add_residual(middle);
    s->finish();
    return s;
  }

  at::Tensor input(const std::string& label = "x") const {
    return noise({kBatch, kLength, kWidth}, label, type).requires_grad_(true);
  }
  at::Tensor output_gradient() const { return noise({kBatch, kLength, kWidth}, "gy", type); }

  // Gradients of the leaves (undefined where there are none), which are cleared.
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> all;
    for (Parameter* p : parameters()) {
      all.push_back(p->leaf().grad());
      p->leaf().mutable_grad() = at::Tensor();
    }
    return all;
  }
};

// Output, gradient of the input, gradients of the parameters.
inline std::vector<at::Tensor> run_block(Block& block, BoundSegment& segment) {
  const at::Tensor x = block.input();
  const at::Tensor y = segment(x);
  y.backward(block.output_gradient());
  std::vector<at::Tensor> all = block.take_gradients();
  all.push_back(y.detach());
  all.push_back(x.grad());
  return all;
}

}  // namespace compact
