// SPDX-License-Identifier: Apache-2.0
// The parts of an optimizer step, for one parameter.
#pragma once

#include <vector>

#include "compact/kernels/updates.h"
#include "compact/optim/optimizer.h"

namespace compact {

struct StepContext {
  const OptimizerOptions& options;
  double learning_rate;   // of this parameter
  double weight_decay;    // of this parameter; 0 where it has none, or where it is in the gradient
  int64_t step;           // number of this update, from 1
  at::Tensor grad_scale;  // f32 [], or undefined
  at::Tensor guard;       // f32 [], or undefined: where it is not 0, nothing may change
  // On the device, or null: read in place of learning rate, step and key (Optimizer::prepare).
  const kernels::AdamWNumbers* numbers = nullptr;
  // If given, fold() appends its update here, to be sent, and does not change the weight.
  std::vector<at::Tensor>* updates = nullptr;

  double decay_factor() const { return 1 - learning_rate * weight_decay; }
};

// Rows of an update that one call of fold() adds to the weight, multiplied by alpha.
struct FoldPart {
  int64_t row, rows;
  double alpha;
  at::ScalarType type;  // of the update
};

// Whether its optimizer keeps an f32 copy of the weight.
bool has_master(const ParameterState& s, const OptimizerOptions& options);

// The arguments of one update.
struct ParameterStep {
  ParameterState* state;
  at::Tensor grad;
  StepContext context;
};

// The uses of random bits in one update; no two share any.
enum class Draws : uint64_t { kStep, kFold, kMomentum, kCarryFirst, kCarrySecond };
uint64_t draws_key(const ParameterState& s, int64_t step, Draws use);

// The numbers of one update that AdamW's kernel reads; `key`: of its random bits.
kernels::AdamWNumbers adamw_numbers(const StepContext& context, uint64_t key);

// Throws InputError unless t is undefined or one f32 on the parameters' device.
void check_scalar(const char* name, const at::Tensor& t, const std::vector<ParameterState>& states);
void check_rate(double learning_rate);

// Appends norms whose own norm is that of x. In blocks below f32, as the CPU casts whole tensors.
void append_norms(const at::Tensor& x, std::vector<at::Tensor>& norms);

// The orthogonal factor of x [rows, columns], nearly: five Newton-Schulz steps with the quintic
// coefficients of Muon (Jordan et al. 2024), which bring every singular value to about 0.7..1.2.
// Products in `type`. Zeros give zeros.
at::Tensor orthogonalize(const at::Tensor& x, at::ScalarType type);

// t = decay * t + alpha * d with the fold kernel: bf16 rounded stochastically, or with `master`.
// d f32, of t's size; `offset` is the first element's place in the whole tensor. A guard that is
// not 0 prevents it.
void accumulate(const at::Tensor& t, const at::Tensor& master, const at::Tensor& d, double decay,
                double alpha, uint64_t key, int64_t offset, const at::Tensor& guard = {});

// weight[begin .. begin + rows) = decay * it + alpha * update, where update is [rows, in] or, with
// a carrier, [rows, r] and taken through P^T; a block of rows at a time.
void fold_rows(ParameterState& s, int64_t begin, const at::Tensor& update, double decay,
               double alpha, uint64_t key, const at::Tensor& guard = {});

// The same with decay, key and guard of the context; see StepContext::updates.
void fold(ParameterState& s, const FoldPart& part, const at::Tensor& update,
          const StepContext& context);

// Draws the next projections of a carrier; where its moments follow, m <- m P_old^T P_new r/n.
void redraw(ParameterState& s, const OptimizerOptions& options, int64_t step);

}  // namespace compact
