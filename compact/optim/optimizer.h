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

// The optimizer's state of one parameter.
struct ParameterState {
  Parameter* parameter = nullptr;
  at::Tensor leaf, weight;              // those of the parameter when the optimizer was made
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
  at::Tensor total;  // from zero 2 on, in the owner: the sum over all ranks of the passes so far
  MemoryPlace place = MemoryPlace::kDevice;  // of m, v and master
  int owner = kEveryRank;                    // the rank that has moments and master
  int rank = 0;                              // this one

  bool is_own() const { return owner == kEveryRank || owner == rank; }
  // The gradient of the next update; undefined where there is none. Throws InputError where
  // autograd has left a gradient beside the sum.
  const at::Tensor& gradient() const;
  // Moves the leaf's gradient into `sum`, or, `in_a_tree`, into `partial_sums`, which finish_tree()
  // sums: that is done after the `last` pass of a step.
  void sum_gradient(bool in_a_tree = false, bool last = false);
  void finish_tree();
  void clear_gradient();
};

// All that a bit-exact resume needs: moments, master weights, pending gradients; the count of
// updates and of draws. Tensors are shared with the optimizer, not copied.
struct OptimizerState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // NAME.m, .v, .master, .grad, .m.scales
  std::map<std::string, int64_t> numbers;                   // updates, draw.NAME
};

// The same in a file: each tensor is read into its place.
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
  // hook, of which a tensor has only one: an earlier optimizer must have been destroyed. Throws
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
  // Empty where `norm` is finite; else the last parameter (the first in a backward pass) whose
  // gradient is not, or "gradient norm" where only the sum overflows. Waits for the device.
  std::string nonfinite(const at::Tensor& norm) const;

  // To be called before every backward pass of a step under OptimizerOptions::f32_sums, and before
  // the only one of a step where parameters are to be updated inside it (Parameter::release). Such
  // a parameter is updated as soon as its gradient is whole, and the gradient is freed; step() then
  // updates the others. With a `guard`, as in step(), the norm of each such gradient is added to
  // it, so that one that is not finite changes nothing. Without a guard, a gradient on the CPU that
  // is not finite is left, with its parameter, as it is; on a GPU it is used like any other, since
  // the host does not wait for its norm; gradient_norm() is then not finite. Throws InputError,
  // with nothing changed, where a parameter that is to be released has a gradient, or a weight is
  // another tensor than it was. Where there are several ranks, gradients of the `last` pass of a
  // step are summed over them as they become whole; under OptimizerOptions::zero 2 those of every
  // pass, which end_backward() ends.
  void begin_backward(double learning_rate, const at::Tensor& guard = {}, bool last = true);

  void end_backward();

  // To be called after the last backward pass of a step: gradients become the sums over all ranks;
  // where a parameter has an owner, only the owner has the sum. Throws InputError where a parameter
  // has no gradient, GroupError where a rank has left.
  void sum_over_ranks();

  // Drops all that the step has so far: sums, gradients and a backward pass that began. After a
  // backward pass that failed half-way the step can be repeated with all of its micro-batches.
  // Parameters that were updated inside that pass stay updated: only load() undoes that. Of several
  // ranks, all must call it at once.
  void clear_gradients();

  // One update of every parameter that was not updated inside the backward pass, gradients
  // multiplied by `grad_scale` (f32 [], or undefined for 1). Each gradient is released, unchanged,
  // once its parameter is updated. Call it after the last backward pass of the step: it writes the
  // weights, and at the end of a period re-draws the projections, so that the next forward and
  // backward see one P. Throws InputError, with nothing changed, where a parameter has no gradient
  // or one of another shape or device, or another weight than it had, or where some are released
  // and `grad_scale` is given: they were updated without it.
  // `guard` (f32 [] on the parameters' device, or undefined): where it is not 0, no weight, moment
  // or master changes, so that the host need not know whether all was finite. The host's part is
  // done all the same: updates() counts, and projections are re-drawn.
  void step(double learning_rate, const at::Tensor& grad_scale = {}, const at::Tensor& guard = {});

  // For steps that are replayed from a CUDA graph. prepare() copies to the device the numbers that
  // change from one update to the next; from then on updates read them there, and step() ignores
  // its learning rate. After a replay replayed() is called in place of step(). Throws InputError
  // where an update cannot be replayed; cannot_replay() says why, or is empty.
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
  // By rank, bytes of the state that this rank alone has; empty where every rank has all.
  const std::vector<int64_t>& dealt_bytes() const { return dealt_; }
  // The same with sums of gradients and weights, where only owners have these, too.
  const std::vector<int64_t>& dealt_loads() const { return loads_; }

  // Which part of this rank's state: all, what every rank has, or what it alone has.
  enum class Part : uint8_t { kAll, kCommon, kOwned };
  OptimizerState state(Part part = Part::kAll) const;
  // Whether a tensor of the state belongs to another rank: load() skips it.
  bool is_elsewhere(const std::string& name) const;
  // Also drops a backward pass that began. Throws InputError, with nothing changed, on a missing,
  // unexpected or misshapen entry, or another weight than there was. Draws the projections of that
  // state. Allocates memory for pending gradients only.
  void load(const StoredState& state);
  void load(const OptimizerState& state);

  // Bytes by kind: moment, second_moment, momentum, master, carrier, projection; and `outside`: of
  // the first four, what lies on the host of a GPU or on a disk.
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
  void end_pass();
  // Throws InputError where a parameter has another weight or leaf than when this was made.
  void check_tensors() const;
  // Throws InputError where the ranks' gradients are not summed yet.
  void check_summed() const;
  // Throws InputError while weights are gathered, when updates would reach only the owners' ones.
  void check_scattered() const;
  at::Tensor norm_over_ranks() const;

  std::vector<ParameterState> states_;
  std::vector<std::pair<at::Tensor, const void*>> hooks_;  // leaves and their hooks
  OptimizerOptions options_;
  std::unique_ptr<Reduction> reduction_;  // of several ranks
  std::vector<int64_t> dealt_, loads_;
  std::shared_ptr<WeightShards> shards_;
  std::vector<Parameter*> sharded_;
  int64_t updates_ = 0;
  at::Tensor numbers_;  // on the device, after prepare(): kernels::AdamWNumbers of each parameter
  // Learning rate and guard of the step whose backward pass has begun, which parameters that pass
  // has updated, and the norms of their gradients.
  std::optional<double> backward_rate_;
  bool last_pass_ = true;
  at::Tensor backward_guard_;
  std::vector<bool> released_;
  std::vector<at::Tensor> released_norms_;
};

}  // namespace compact
