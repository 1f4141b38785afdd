// SPDX-License-Identifier: Apache-2.0
// An optimizer over a model's parameters, full and projected. A projected parameter (one with a
// carrier C) is stepped in the projected space: the step makes C from zero, the fold adds
// scale * C P^T to the weight and zeroes C (CompAct, arXiv 2410.15352).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/codecs/parameter.h"
#include "compact/optim/moment.h"
#include "compact/optim/options.h"
#include "compact/optim/owners.h"
#include "compact/optim/reduction.h"
#include "compact/optim/weight_shards.h"

namespace compact {

// What a parameter has beside weight and gradient.
struct ParameterState {
  Parameter* parameter = nullptr;
  at::Tensor leaf, weight;  // its own when the optimizer was made, which all the rest belongs to
  const OptimizerInfo* kind = nullptr;  // whose updates it gets
  uint64_t key = 0;                     // of its stochastic rounding: from seed and name
  Moment m;           // shape of the leaf: first moment or momentum; undefined where kind has none
  Moment v;           // shape of the leaf: second moment; the same
  at::Tensor master;  // f32, shape of the weight; undefined where the weight is f32 or has none
  at::Tensor sum;     // f32, shape of the leaf: gradients so far, under OptimizerOptions::f32_sums
  // f32, under OptimizerOptions::tree_sums: sums of passes that are not in `sum` yet, the larger
  // first. `passes`: how many passes of the step were summed.
  std::vector<at::Tensor> partial_sums;
  int64_t passes = 0;
  at::Tensor total;        // an owner's, under zero 2: the sums of all ranks' passes so far
  int owner = kEveryRank;  // the rank that has moments and master
  int rank = 0;            // this one

  bool is_own() const { return owner == kEveryRank || owner == rank; }
  // What the next update takes; undefined where there is none. Throws InputError where a gradient
  // went past the sum.
  const at::Tensor& gradient() const;
};

// Enough for a bit-exact resume: moments, master weights, pending gradients; update count and
// numbers of the draws. Tensors are shared with the optimizer, not copied.
struct OptimizerState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // NAME.m, .v, .master, .grad, .m.scales
  std::map<std::string, int64_t> numbers;                   // updates, draw.NAME
};

// The same where it is stored: a tensor is read into its place.
struct StoredTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;
  std::function<void(at::Tensor& to)> read_into;
};
struct StoredState {
  std::vector<StoredTensor> tensors;
  std::map<std::string, int64_t> numbers;
};

struct StepContext;

class Optimizer {
 public:
  // Parameters must outlive the optimizer, and keep the tensors that they have: weights change in
  // place. Moments and masters are allocated here; a master takes the weight's values. Where
  // gradients are taken inside the backward pass (f32_sums, Parameter::release) the leaf gets a
  // hook, of which a tensor has one: an optimizer before this one must be gone by then. Throws
  // InputError on a frozen parameter, a leaf that has a hook, on repeated names, weights that are
  // not contiguous or of another type than f32 and bf16, and options out of range.
  Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options);
  Optimizer(const Optimizer&) = delete;  // parameters' hooks point to it
  ~Optimizer();

  // To be called by all ranks, after sum_over_ranks(), as is nonfinite().
  // The norm of all leaves' gradients together, released ones included, f32 [] on the parameters'
  // device. A projected parameter counts with |G P|, whose mean square is |G|^2.
  at::Tensor gradient_norm() const;
  // min(1, max_norm / (norm + 1e-6)), f32 []: what step() multiplies gradients with.
  static at::Tensor clip_factor(const at::Tensor& norm, double max_norm);
  // Empty where `norm` is finite; else the last parameter whose gradient is not, which a backward
  // pass comes to first, or "gradient norm" where only the sum overflows. Reads from the device.
  std::string nonfinite(const at::Tensor& norm) const;

  // To be called before every backward pass of a step under OptimizerOptions::f32_sums, and before
  // the only one of a step where parameters are to be updated inside it (Parameter::release). Such
  // a parameter is updated as soon as its gradient is whole, and the gradient is freed; step() then
  // updates the others. With a `guard`, as in step(), the norm of each such gradient is added to
  // it, so that one that is not finite changes nothing. Without a guard, a gradient on the CPU that
  // is not finite is left, with its parameter, as it is; on a GPU it is used like any other, since
  // the host does not wait to look at it. gradient_norm() tells of it. Throws InputError, with
  // nothing changed, where a parameter that is to be released has a gradient, or a weight is
  // another tensor than it was. Where there are several ranks, gradients of the `last` pass of a
  // step are summed over them as they become whole; under OptimizerOptions::zero 2 those of every
  // pass, which end_backward() ends.
  void begin_backward(double learning_rate, const at::Tensor& guard = {}, bool last = true);

  void end_backward();

  // To be called after the last backward pass of a step: gradients become the sums over all ranks;
  // where a parameter has an owner, only the owner has the sum. Throws InputError where a parameter
  // has no gradient, GroupError where a rank has gone.
  void sum_over_ranks();

  // Drops what the step has so far: sums, gradients, and that its backward pass began. After a
  // backward pass that failed half-way the step then begins again, with all of its micro-batches.
  // What was updated inside that pass stays so: going on exactly needs load(). Where there are
  // several ranks, all must do it at once.
  void clear_gradients();

  // One update of every parameter that still has a gradient to give, gradients multiplied by
  // `grad_scale` (f32 [], or undefined for 1). Each gradient is released, unchanged, once its
  // parameter is updated. Call it after the last backward pass of the step: it writes the weights,
  // and at the end of a period re-draws the projections, so that the next forward and backward see
  // one P. Throws InputError, with nothing changed, where a parameter has no gradient or one of
  // another shape or device, or another weight than it had, or where some are released and
  // `grad_scale` is given: they were updated without it.
  // `guard` (f32 [] on the parameters' device, or undefined): where it is not 0, no weight, moment
  // or master changes, so that whether all was finite may be known on the device alone. What the
  // host does is done all the same: updates() counts, and projections are re-drawn.
  void step(double learning_rate, const at::Tensor& grad_scale = {}, const at::Tensor& guard = {});

  // For steps that are replayed from a CUDA graph. prepare() puts on the device all that changes
  // from one update to the next; from then on updates read it there, and step() ignores its
  // learning rate. A replayed step is followed by replayed() in place of step(). Throws InputError
  // where an update cannot do that; cannot_replay() says why, or nothing.
  std::string cannot_replay() const;
  void prepare(double learning_rate);
  void replayed();

  // Under OptimizerOptions::zero 3: from now on only its owner holds a weight, or what another home
  // holds of it, except while the segment that reads it runs (Parameter::places). `segments`: the
  // weights that each reads, frozen ones among them, in the order of the forward pass; a weight
  // that several read stays on all ranks. gather_weights() brings all weights to all ranks until
  // scatter_weights(), for code that reads them outside of segments.
  void shard_weights(const std::vector<std::vector<Parameter*>>& segments);
  void gather_weights();
  void scatter_weights();

  int64_t updates() const { return updates_; }
  // Whether the next update re-draws projections.
  bool redraws_next() const;
  const std::vector<ParameterState>& states() const { return states_; }
  // Bytes of the state that only one of several ranks has, by rank; empty where all have all.
  const std::vector<int64_t>& dealt_bytes() const { return dealt_; }
  // The same with sums of gradients and weights, where these are dealt too.
  const std::vector<int64_t>& dealt_loads() const { return loads_; }

  // Which part of the state that this rank has (see is_elsewhere()): all, what every rank has, or
  // what it alone has.
  enum class Part : uint8_t { kAll, kCommon, kOwned };
  OptimizerState state(Part part = Part::kAll) const;
  // Whether a tensor of the state is another rank's: load() passes over it.
  bool is_elsewhere(const std::string& name) const;
  // Also ends a backward pass that began. Throws InputError, with nothing changed, on a missing,
  // unexpected or misshapen entry, or another weight than there was. Re-draws the projections in
  // force. Takes memory for pending gradients and no other.
  void load(const StoredState& state);
  void load(const OptimizerState& state);

  // Bytes by kind: moment, second_moment, momentum, master, carrier, projection.
  std::map<std::string, int64_t> bytes() const;

 private:
  void update(ParameterState& state, const StepContext& context);
  void redraw_where_due(ParameterState& state);
  void exchange_updates(double learning_rate, const at::Tensor& grad_scale,
                        const at::Tensor& guard);
  void update_together(double learning_rate, const at::Tensor& grad_scale, const at::Tensor& guard);
  StepContext context_of(const ParameterState& state, double learning_rate,
                         const at::Tensor& grad_scale, const at::Tensor& guard) const;
  void gradient_is_whole(size_t index);
  void release(size_t index);
  void gather(ParameterState& state);
  void gather_in_a_tree(ParameterState& state);
  static void finish_tree(ParameterState& state);
  void end_pass();
  // Throws InputError where a parameter has got another weight or leaf.
  void check_tensors() const;
  // Throws InputError where gradients are those of one rank of several.
  void check_summed() const;
  // Or where all ranks have weights that only their owners would update.
  void check_scattered() const;
  at::Tensor norm_over_ranks() const;

  std::vector<ParameterState> states_;
  std::vector<std::pair<at::Tensor, const void*>> hooks_;  // leaves, and what was hung on them
  OptimizerOptions options_;
  std::unique_ptr<Reduction> reduction_;  // of several ranks
  std::vector<int64_t> dealt_, loads_;
  std::shared_ptr<WeightShards> shards_;
  std::vector<Parameter*> sharded_;
  int64_t updates_ = 0;
  at::Tensor numbers_;  // on the device, kernels::AdamWNumbers of each parameter; once prepared
  // Learning rate and guard of the step whose backward pass has begun, which parameters that pass
  // has updated, and the norms of their gradients.
  std::optional<double> backward_rate_;
  bool last_pass_ = true;
  at::Tensor backward_guard_;
  std::vector<bool> released_;
  std::vector<at::Tensor> released_norms_;
};

}  // namespace compact
