// SPDX-License-Identifier: Apache-2.0
// A layer of a transformer that another program owns, as one segment, which the Python package
// runs in place of the layer's forward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compact/networks/block_shape.h"
#include "compact/networks/network.h"
#include "compact/ops/functions/attention.h"
#include "compact/plan/groups.h"
#include "compact/python/projected.h"

namespace compact {

class Block final : public torch::CustomClassHolder {
 public:
  using Numbers = c10::Dict<std::string, double>;
  // Low-rank adapters (LoRA): product, which of its matrices, rank, scale, probability of dropout.
  using Adapters = std::vector<std::tuple<std::string, int64_t, int64_t, double, double>>;

  // `kind`: gated, pre_norm or post_norm, as the blocks of compact/networks. `seed`: of
  // projections. `name`: layers.3, as policies call it. `numbers`: its shape, see block_shape.h.
  // Throws InputError on what is unknown or out of range, and where the policy asks for what the
  // layer cannot have.
  Block(std::string kind, std::string name, std::string policy, Numbers numbers, Adapters adapters,
        int64_t seed);

  // "attn.qkv.1.weight": what forward() takes, in its order; "attn.qkv.adapter.0.A" and ".B" of the
  // first adapter of a product; after all others "attn.qkv.1.carrier", zeros [out, rank], of every
  // matrix whose gradient the policy projects: it takes the gradient.
  const std::vector<std::string>& weights() const { return names_; }
  // Products whose gradients are projected: attn.qkv. What they are projected with.
  std::vector<std::string> projections() const;
  c10::intrusive_ptr<Projected> projected(const std::string& product) const;
  // Uses this projection, of the same settings, from now on.
  void set_projected(const std::string& product, c10::intrusive_ptr<Projected> projected);
  // From now on a search for a policy leaves the gradient of a product's weights as it is.
  void keep_full(const std::string& product) { full_.insert(product); }
  // The slots that policies may name: names, roles, and whether the policy has them in tiles.
  std::vector<std::tuple<std::string, std::string, bool>> slots() const;

  // The layer's output for x [batch, sequence, hidden], in x's type. The weights are given at each
  // call: matrices [out, in], or [in, out] where the numbers say so (not those of adapters,
  // which may have another type than the others). Under autocast products
  // are made in its type, of weights that are cast for as long as the pass takes, and again in the
  // backward pass. `cos`, `sin`: f32 [sequence or batch * sequence, width / 2], for kinds with
  // rotary positions. `lengths`: int64 [batch], tokens that are not padding. `ranges`: see
  // SegmentPass, in their place, where attention is causal, drops nothing in this pass and caps no
  // scores; a window is not looked at then. `training`: dropout is drawn, from torch's generator
  // for the CPU. Throws InputError where types or shapes do not fit.
  at::Tensor forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                     const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin,
                     const std::optional<at::Tensor>& lengths,
                     const std::optional<at::Tensor>& ranges, bool training);

  // The slots of the last call that made a graph: name, treatment, bytes held, bytes if all were
  // kept.
  std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> held() const;
  // The same call's tiles, each kind once: the most tokens of one, and how many there were.
  std::vector<std::tuple<int64_t, int64_t>> tiles() const;
  // The kernel that the last call with padding or ranges had for attention, the bytes of what is
  // added to its scores while it runs, and how many ranges there were. Throws InputError where
  // there was no such call.
  std::tuple<std::string, int64_t, int64_t> masking() const;

  const std::string& kind() const { return kind_; }
  const std::string& name() const { return name_; }
  const std::string& policy() const { return policy_text_; }
  const Numbers& numbers() const { return numbers_; }
  const Adapters& adapters() const { return adapters_; }
  int64_t seed() const { return seed_; }

 private:
  struct Variant {
    c10::DeviceType device;
    at::ScalarType products;
    bool padded;
    bool ranges;
    bool windowed;  // sequences are longer than the window of attention
    auto operator<=>(const Variant&) const = default;
  };
  using PartPtr = std::shared_ptr<const Network::Part>;
  static constexpr const char* kAdapter = ".adapter.";  // in names of weights
  PartPtr part(const Variant& variant);
  PartPtr make(const Variant& variant) const;
  // Adds the weights of products of one input, in one matrix or in a matrix each; or of a norm.
  Network::Affine product(const std::string& name, int64_t in, std::vector<int64_t> out, bool bias);
  Network::Affine norm(const std::string& name, int64_t width, bool bias);
  void make_weights();
  void adapt();
  Parameter* add_weight(const std::string& full, at::IntArrayRef sizes, bool of_product = true);
  void project_gradients(const Network::Part& part);
  // Remembers a call, for plans: in shapes alone.
  void show(SegmentGroups& seen, const PartPtr& part, const at::Tensor& x, Weights weights,
            const SegmentPass& pass) const;

  std::string kind_, name_, policy_text_;
  Numbers numbers_;
  BlockShape shape_;
  Adapters adapters_;
  Policy policy_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // shapes alone
  std::map<std::string, Network::Affine> affines_;
  std::vector<std::string> names_;
  int64_t seed_ = 0;
  struct Kind {  // of a weight
    bool product = false, adapter = false;
  };
  std::vector<Kind> kinds_;
  std::map<std::string, c10::intrusive_ptr<Projected>> projected_;  // by product
  struct Gradient {  // of a projected matrix: what it is projected with, and its place in names_
    std::string product;
    size_t carrier = 0;
  };
  std::map<size_t, Gradient> gradients_;  // by the weight's place
  // Weights whose gradients may be projected in any pass; products excluded by keep_full().
  std::set<const Parameter*> projectable_;
  std::set<std::string> full_;
  bool draws_ = false;  // codecs draw random bits
  bool drops_ = false;  // in training some is dropped at random
  std::mutex mutex_;
  std::map<Variant, PartPtr> parts_;
  mutable std::mutex held_mutex_;
  std::vector<SlotBytes> held_;
  std::vector<TilesRun> tiles_;
  struct Masked {
    Variant variant;
    int64_t samples, length, ranges;
  };
  std::optional<Masked> masked_;  // the last call with padding or ranges
};

}  // namespace compact
