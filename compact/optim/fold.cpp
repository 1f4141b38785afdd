// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/blocks.h"
#include "compact/codecs/launch.h"
#include "compact/optim/update.h"

namespace compact {

void accumulate(const at::Tensor& t, const at::Tensor& master, const at::Tensor& d, double decay,
                double alpha, uint64_t key, int64_t offset, const at::Tensor& guard) {
  backend_of(t).fold({.w = t.data_ptr(),
                      .master = floats_of(master),
                      .d = floats_of(d),
                      .count = t.numel(),
                      .decay = static_cast<float>(decay),
                      .alpha = static_cast<float>(alpha),
                      .key = key,
                      .offset = static_cast<uint64_t>(offset),
                      .type = type_of(t),
                      .guard = floats_of(guard)},
                     launch_for(t));
  // Autograd does not see what kernels write: a graph retained across the step must be refused.
  t.unsafeGetTensorImpl()->bump_version();
}

void fold_rows(ParameterState& s, int64_t begin, const at::Tensor& update, double decay,
               double alpha, uint64_t key, const at::Tensor& guard) {
  const Parameter& p = *s.parameter;
  const int64_t in = p.weight.size(1), end = begin + update.size(0);
  // Adds rows [first, last) of the weight through P^T of one projection, or as they are.
  const auto add = [&](int64_t first, int64_t last, const Projection* projection) {
    for_alike_blocks(p.weight, first, last, block_rows(in, block_elements(p.weight)),
                     [&](int64_t row, int64_t rows) {
                       const at::Tensor part = update.narrow(0, row - begin, rows);
                       const at::Tensor d = projection ? projection->transpose(part)
                                                       : part.to(at::kFloat).contiguous();
                       accumulate(p.weight.narrow(0, row, rows),
                                  s.master.defined() ? s.master.narrow(0, row, rows) : at::Tensor(),
                                  d, decay, alpha, key, row * in, guard);
                     });
  };
  if (!p.carrier) return add(begin, end, nullptr);
  int64_t first = 0;
  for (size_t i = 0; i < p.carrier->rows.size(); ++i) {
    const int64_t last = first + p.carrier->rows[i];
    if (std::max(first, begin) < std::min(last, end)) {
      add(std::max(first, begin), std::min(last, end), p.carrier->projections[i].get());
    }
    first = last;
  }
}

void fold(ParameterState& s, const FoldPart& part, const at::Tensor& update,
          const StepContext& context) {
  if (context.updates) return context.updates->push_back(update);
  fold_rows(s, part.row, update, context.decay_factor(), part.alpha,
            draws_key(s, context.step, Draws::kFold), context.guard);
}

}  // namespace compact
