// SPDX-License-Identifier: Apache-2.0
// A segment: an ordered list of stages that is one autograd node. Every tensor on the way is kept
// or rebuilt from kept ones in the backward pass; both give the same gradients bit for bit. A
// segment holds no parameter and no state of a pass: what it reads is given at every call, and many
// threads may run it at once (but in training batch norms move the statistics of their stage).
// Changed codecs apply to later passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/codecs/codec.h"
#include "compact/ops/segments/recipe.h"

namespace compact {

struct SlotUse {
  std::string name;
  Role role = Role::kNone;
  bool rebuilt = false;   // whether it can be rebuilt from slots
  bool signs = false;     // backward reads only its signs
  bool in_tiles = false;  // never whole
};

// The bytes of a slot: stored, and if it were kept as it is.
struct SlotBytes {
  std::string name, treatment;
  int64_t stored = 0, if_kept = 0;
};

// Steps that ran on some tokens at a time: the most of a tile, and how many there were.
struct TilesRun {
  int64_t tokens = 0, count = 0;
  bool operator==(const TilesRun&) const = default;
};

// The memory that forward passes with gradients left for their backward passes.
struct SegmentReport {
  std::vector<SlotBytes> slots;  // every slot, then "NAME extras"
  std::vector<TilesRun> tiles;   // one for each row of steps between two whole tensors
  int64_t saved_bytes = 0;       // stored, summed over slots and extras
  // How many tensors their backward passes have rebuilt so far.
  std::shared_ptr<std::atomic<int64_t>> rebuilt = std::make_shared<std::atomic<int64_t>>(0);
};

class Segment {
 public:
  // Tensor 0 is the segment's input. Its slot is kept, as it is or by a codec; without a name it is
  // not, and nothing may be rebuilt from it. `name`: layers.3.
  Segment(std::string name, Slot input);
  Segment(const Segment&) = delete;
  Segment(Segment&&) = default;

  // Appends a stage that reads the tensor made last. `output` describes what it makes (empty name:
  // not a slot, never kept); `side` its second output, if the stage has one. Returns the tensor.
  int add(std::shared_ptr<const Stage> stage, Slot output = {}, Slot side = {});
  // The same for a stage that reads tensor `input`: a branch.
  int add_branch(int input, std::shared_ptr<const Stage> stage, Slot output = {});
  // Appends the sum of the tensor made last and tensor `other`.
  int add_residual(int other, Slot output = {});

  // Checks treatments against what stages can do; called once all stages are there. A codec that
  // rounds a ReLU's output gives 0 a code of its own (levels=positive), or holds no more than signs
  // where nothing else reads it. Throws InputError naming the slot, for example where a sketched
  // slot is read by an operation that needs the tensor itself.
  void finish();

  // y = segment(x) with the weights that its stages take, in their order. One autograd node where
  // gradients are on and something requires them; it keeps what is read by the stages that a
  // required gradient comes through, the weights among it, and needs neither segment nor model to
  // live. (It keeps no input of a linear stage whose weight is frozen; other stages, convolutions
  // too, keep the same for any of their gradients.) A second backward pass through it, also after
  // one that failed, needs retain_graph in the first. x has the type of the weights (norms may be
  // in f32); autocast does not reach inside. Where the caller gives x up, its memory may hold what
  // is made of it. `report`: where given, what the pass left is added to it. Throws InputError on
  // another number of weights, on another type, on a sketch whose reader has lost its projection,
  // and on a tensor that check_plain() refuses.
  at::Tensor operator()(at::Tensor x, std::vector<Weight> weights, const SegmentPass& pass = {},
                        SegmentReport* report = nullptr) const;

  // Slots that codecs hold, and giving one of them another codec for forward passes to come: fitted
  // to what backward reads and refused as in finish(), with nothing changed.
  std::vector<Slot> codec_slots() const;
  void set_codec(const std::string& slot, const Treatment& treatment);
  // The same for every slot that a line of the policy matches.
  void set_codecs(const Policy& policy);

  const std::string& name() const { return recipe_->name; }
  int tensors() const { return static_cast<int>(recipe_->slots.size()); }

  // Whether a tensor comes back rounded: by its own codec, or made from one that does.
  bool rounded(int tensor) const { return recipe_->rounded(tensor); }
  // The same segment with its slots treated as another policy says. Throws as finish().
  Segment treated(const Policy& policy) const;
  // Whether each weight is a matrix whose gradient may be projected and whose input no other
  // operation's backward pass reads.
  std::vector<bool> projectable() const;
  // Stage::variant of each stage, in order.
  std::vector<int64_t> variants() const;
  // The role of each slot, and how it can be treated, in the order of the forward pass.
  std::vector<SlotUse> uses() const;
  // How many weights it takes.
  int parameters() const { return recipe_->parameters; }
  // work: the cost of each step of a forward pass on x, in order; x may be on the meta device.
  // rerun: whether the backward pass runs the step again.
  std::vector<Work> work(const at::Tensor& x, Weights weights, const SegmentPass& pass = {}) const;
  std::vector<bool> rerun() const;
  // Seconds of each step of a forward pass on x, which is on the meta device as the weights are and
  // what `pass` holds. The seconds of a matrix product come from `product`, which gets its work,
  // its output and the type of its matrices; every other step is timed alone on the CPU, with
  // `on_cpu`.
  std::vector<double> forward_seconds(
      const at::Tensor& x, Weights weights, const SegmentPass& pass, const SegmentPass& on_cpu,
      FunctionRef<double(const Work&, const at::Tensor&, at::ScalarType)> product) const;

 private:
  explicit Segment(std::shared_ptr<Recipe> recipe) : recipe_(std::move(recipe)) {}
  // The recipe, to be changed: a copy where graphs share it, which keep the old one.
  Recipe& change();

  std::shared_ptr<Recipe> recipe_;
};

}  // namespace compact
