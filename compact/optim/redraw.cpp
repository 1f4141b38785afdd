// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/blocks.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

// m <- m overlap r/n, exact for orthonormal bases (columns of length sqrt(n/r)).
void carry_first(const Moment& m, int64_t row, int64_t rows, const at::Tensor& overlap,
                 double scale, uint64_t key) {
  m.accumulate(row, m.read(row, rows).to(at::kFloat).mm(overlap), 0, scale, key);
}

// v <- v overlap^2 (element-wise square), each row scaled to keep its mean.
void carry_second(const Moment& v, int64_t row, int64_t rows, const at::Tensor& overlap,
                  uint64_t key) {
  const at::Tensor old = v.read(row, rows).to(at::kFloat);
  at::Tensor fresh = old.mm(overlap.square());
  const at::Tensor mean = fresh.mean(1, true).clamp_min_(1e-38);
  v.accumulate(row, fresh.mul_(old.mean(1, true).div_(mean)), 0, 1, key);
}

}  // namespace

void redraw(ParameterState& s, const OptimizerOptions& options, int64_t step) {
  Carrier& c = *s.parameter->carrier;
  const std::vector<ProjectionPtr> old = c.projections;
  c.redraw(c.draw + 1, s.parameter->weight.options());
  if (!c.carry || !(s.m.defined() || s.v.defined())) return;
  const double scale = static_cast<double>(c.rank) / static_cast<double>(c.in - c.zeros);
  int64_t first = 0;
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const at::Tensor overlap = old[i]->overlap(*c.projections[i]);
    for_blocks(first, first + c.rows[i], block_rows(c.rank), [&](int64_t row, int64_t rows) {
      if (s.m.defined()) {
        carry_first(s.m, row, rows, overlap, scale, draws_key(s, step, Draws::kCarryFirst));
      }
      if (s.v.defined() && options.carry_second) {
        carry_second(s.v, row, rows, overlap, draws_key(s, step, Draws::kCarrySecond));
      }
    });
    first += c.rows[i];
  }
}

}  // namespace compact
