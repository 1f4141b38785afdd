// SPDX-License-Identifier: Apache-2.0
// A segment: an ordered list of stages that is one autograd node. Every tensor on the way is kept
// or rebuilt from kept ones in the backward pass; both give the same gradients bit for bit. One
// segment is for one thread at a time: a forward pass counts itself and what it stored, and changes
// of codecs, noise and training are for the passes after them. Backward passes may run on others.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compact/codecs/codec.h"
#include "compact/codecs/parameter.h"
#include "compact/ops/policy.h"
#include "compact/ops/recipe.h"

namespace compact {

struct SlotUse {
  std::string name;
  bool rebuilt = false;  // it can be: it is made of slots, or of what can be made of them
  bool signs = false;    // backward asks no more of it than what is above 0
};

// What a slot costs for a number of tokens.
struct SlotBytes {
  std::string name, treatment;
  int64_t stored = 0, if_kept = 0;
};

class Segment {
 public:
  // Tensor 0 is the segment's input. Its slot is kept, as it is or by a codec; without a name it is
  // not, and nothing may be rebuilt from it. `name`: layers.3.
  Segment(std::string name, Slot input);
  Segment(const Segment&) = delete;

  // Appends a stage that reads the tensor made last. `output` describes what it makes (empty name:
  // not a slot, never kept); `side` its second output, if the stage has one. Returns the tensor.
  int add(std::shared_ptr<const Stage> stage, Slot output = {}, Slot side = {});
  // The same for a stage that reads tensor `input`: a branch.
  int add_branch(int input, std::shared_ptr<const Stage> stage, Slot output = {});
  // Appends the sum of the tensor made last and tensor `other`.
  int add_residual(int other, Slot output = {});

  // Checks treatments against what stages can do; called once all stages are there. A codec that
  // rounds a ReLU's output gives 0 a code of its own (levels=positive), or holds no more than signs
  // where nothing else reads it. Throws
  // InputError naming the slot, for example where a sketched slot is read by an operation that
  // needs the tensor itself.
  void finish();

  // y = segment(x). One autograd node where gradients are on and something requires them; it keeps
  // what is read by the stages that a required gradient comes through, and needs neither segment
  // nor parameters to live. (Of a linear stage with a frozen weight it keeps no input; every other,
  // a convolution too, reads what it reads for any of its gradients.) A second backward pass
  // through it, also after one that failed, needs retain_graph in the first. x has the type of the
  // weights (norms may be in f32); autocast does not reach inside. Throws InputError on another
  // type, on a sketch whose reader has lost its projection, and on a tensor that is none of plain
  // memory: one of functorch or with a tangent, a tensor subclass. `lengths`: see Stage::Pass.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& lengths = {}) const;
  // The same where the caller gives x up: its memory may hold what is made of it.
  at::Tensor operator()(at::Tensor&& x, const at::Tensor& lengths = {}) const;

  // Slots that codecs hold, and giving one of them another codec for forward passes to come: fitted
  // to what backward reads and refused as in finish(), with nothing changed.
  std::vector<Slot> codec_slots() const;
  void set_codec(const std::string& slot, const std::string& treatment);
  // The same for all that the policy names.
  void set_codecs(const Policy& policy);

  // What the random bits of codecs and dropout come from, until the next call: every forward pass
  // has others.
  void set_noise(uint64_t key) const { noise_ = key, passes_ = 0; }
  // Whether forward passes to come are of training; at first they are not.
  void set_training(bool training) const { training_ = training; }

  const std::string& name() const { return recipe_->name; }
  int tensors() const { return static_cast<int>(recipe_->slots.size()); }

  // Exact bytes held for `tokens` tokens by element size: every slot, then "NAME extras".
  std::vector<SlotBytes> bytes(int64_t tokens, int64_t element_size) const;
  // Whether a tensor comes back rounded: by its own codec, or made from one that does.
  bool rounded(int tensor) const { return recipe_->rounded(tensor); }
  // What a policy may do with each slot, in the order of the forward pass; their names.
  std::vector<SlotUse> uses() const;
  std::vector<std::string> named_slots() const;
  // What each step takes, in order; whether the backward pass runs it again.
  std::vector<Work> work(int64_t tokens, int64_t length, int64_t element_size) const;
  std::vector<Work> work(const at::Tensor& x) const;  // on tokens, or maps, where it is run
  std::vector<bool> rerun() const;
  // Seconds of each step of a forward pass on x, the least of `rounds`.
  std::vector<double> forward_seconds(const at::Tensor& x, int rounds) const;

  // Of the latest forward pass that made a graph: every slot, then "NAME extras".
  const std::vector<SlotBytes>& latest() const { return latest_; }
  // Bytes that the latest forward pass stored, summed over slots and extras.
  int64_t saved_bytes() const { return saved_bytes_; }
  // How many tensors backward passes have rebuilt, since construction.
  int64_t recomputed() const { return *recomputed_; }

 private:
  friend struct SegmentNode;
  // Graphs keep the recipe that they were made by.
  Recipe& change();

  std::shared_ptr<Recipe> recipe_;
  std::vector<const Parameter*> parameters_;
  std::shared_ptr<std::atomic<int64_t>> recomputed_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::vector<SlotBytes> latest_;
  mutable int64_t saved_bytes_ = 0;
  mutable uint64_t noise_ = 0, passes_ = 0;
  mutable bool training_ = false;
};

}  // namespace compact
