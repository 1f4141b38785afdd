// SPDX-License-Identifier: Apache-2.0
// The settings of an optimizer.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "compact/codecs/parameter.h"
#include "compact/optim/optimizers.h"
#include "compact/parallel/group.h"

namespace compact {

struct OptimizerOptions {
  const OptimizerInfo* kind = &adamw_optimizer;  // a row of the table
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;      // OptimizerInfo::decoupled_decay says how
  double momentum = 0.95;       // Muon: m <- momentum * m + gradient
  bool nesterov = true;         // Muon: orthogonalises gradient + momentum * m, else m
  double sgd_momentum = 0.9;    // m <- momentum * m + gradient; 0: there is no m
  bool master_weights = false;  // bf16 weights: keep and update an f32 copy
  bool carry_second = false;    // a re-draw carries v by squared overlaps; else v is kept
  // For steps of several backward passes: from begin_backward() to step(), as soon as autograd has
  // made the gradient of a bf16 parameter, it is moved into an f32 sum, so that small parts are not
  // rounded away.
  bool f32_sums = false;
  // The same for every parameter, and sums are those of a binary tree over neighbours: a power of
  // two of passes is summed in the order of as many ranks (Group::sum_in_a_tree), at the cost of
  // one more f32 gradient for every doubling. No state is saved inside a step.
  bool tree_sums = false;
  // Multiplies the learning rate of hidden and of projected matrices.
  double hidden_lr_factor = 1;
  uint64_t seed = 0;  // of stochastic rounding
  // How a parameter's moments are held, as moment_kind() reads it; empty: f32 everywhere.
  std::function<std::string(const Parameter&)> moment;
  std::string offload_folder;  // for files of moments and masters with `+disk`
  // The processes that train one model, each on its own samples; null: this one alone. All must
  // make the same calls. Only one optimizer of a group may be in a step at a time.
  std::shared_ptr<Group> group;
  // The tensors of a matrix that only one rank holds, by ZeRO's stages. 0: none. 1: its moments and
  // master. 2: also the sum of its gradients, made in every backward pass. 3: also the weight, of
  // the segments given to Optimizer::shard_weights(). All ranks hold vectors whole.
  int zero = 0;
  // The widest type in which gradients of matrices are summed over ranks; gradients of wider types
  // are rounded to it first.
  at::ScalarType reduce_type = at::kFloat;
};

// Throws InputError on a value out of range.
void check_options(const OptimizerOptions& options);

}  // namespace compact
