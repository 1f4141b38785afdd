// SPDX-License-Identifier: Apache-2.0
// Muon: momentum orthogonalised by Newton-Schulz steps (Jordan et al. 2024), the update scaled by
// 0.2 sqrt(max(rows, columns)) so that AdamW's learning rates serve (Liu et al. 2025).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/optim/update.h"

namespace compact {
namespace {

// The rows of each matrix of a fused parameter.
std::vector<int64_t> matrices(const Parameter& p) {
  if (!p.parts.empty()) return p.parts;
  return p.carrier ? p.carrier->rows : std::vector<int64_t>{p.weight.size(0)};
}

// Hidden matrices, full or projected.
bool is_hidden_matrix(const Parameter& p) { return p.weight.dim() == 2 && (p.hidden || p.carrier); }

}  // namespace

at::Tensor orthogonalize(const at::Tensor& x, at::ScalarType type) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const at::Tensor norm = at::linalg_vector_norm(x, 2, {}, false, at::kFloat).add_(1e-7);
  at::Tensor y = x.div(norm).to(type);
  const bool tall = y.size(0) > y.size(1);
  if (tall) y = y.t();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = y.mm(y.t());
    const at::Tensor b = at::addmm(a, a, a, kB, kC);
    y = at::addmm(y, b, y, kA);
  }
  return (tall ? y.t() : y).contiguous();
}

namespace {

// One part for each matrix, projected or not.
std::vector<FoldPart> muon_folds(const ParameterState& s, const StepContext& context) {
  const Parameter& p = *s.parameter;
  const double scale = p.carrier ? p.carrier->scale : 1;
  const int64_t zeros = p.carrier ? 0 : p.padding.columns;
  std::vector<FoldPart> parts;
  int64_t row = 0;
  for (const int64_t rows : matrices(p)) {
    const int64_t longer = std::max(rows - p.padding.rows, s.leaf.size(1) - zeros);
    const double size = 0.2 * std::sqrt(static_cast<double>(longer));
    parts.push_back({row, rows, -context.learning_rate * size * scale, s.weight.scalar_type()});
    row += rows;
  }
  return parts;
}

void muon_step(ParameterState& s, const at::Tensor& grad, const StepContext& context) {
  const OptimizerOptions& o = context.options;
  for (const FoldPart& part : muon_folds(s, context)) {
    const int64_t row = part.row, rows = part.rows;
    // A copy: other tensors may share the gradient's memory.
    at::Tensor g = at::empty({rows, grad.size(1)}, grad.options().dtype(at::kFloat));
    g.copy_(grad.narrow(0, row, rows));
    if (context.grad_scale.defined()) g.mul_(context.grad_scale);
    at::Tensor m = s.m.accumulate(row, g, o.momentum, 1,
                                  draws_key(s, context.step, Draws::kMomentum), context.guard);
    at::Tensor direction = o.nesterov ? g.add_(m, o.momentum) : m;
    g = m = at::Tensor();
    const at::Tensor update = orthogonalize(direction, part.type);
    direction = at::Tensor();
    // Folded without being written to the carrier, which stays zero.
    fold(s, part, update, context);
  }
}

}  // namespace

extern const OptimizerInfo muon_optimizer = {
    .name = "muon",
    .summary = "Muon (Jordan et al. 2024) for the matrices of blocks, AdamW for the rest",
    .step = muon_step,
    .state = [](const OptimizerOptions&) { return OptimizerInfo::State{.m = true}; },
    .folds = muon_folds,
    .takes = is_hidden_matrix,
};

}  // namespace compact
