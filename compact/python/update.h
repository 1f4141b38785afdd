// SPDX-License-Identifier: Apache-2.0
// Updates of parameters that somebody else's program owns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "compact/python/projected.h"

namespace compact {

using UpdateNumbers = c10::Dict<std::string, double>;

// One update of a weight whose gradient [out, rank] is projected, by the optimizer `kind`, with
// moments of the gradient's shape: the step is made in the projected space and added to the weight,
// [out, in] or, `transposed`, [in, out]. Where this update is the last of a period, the moments
// follow into the projection of the next one; redraw() is to be called after the updates of all
// that share the projection. The rest as of torch.ops.compact.update_parameters. Throws InputError,
// with nothing changed, on what does not fit.
void update_projected(const c10::intrusive_ptr<Projected>& projected, const std::string& kind,
                      const at::Tensor& weight, const at::Tensor& grad,
                      const std::optional<at::Tensor>& m, const std::optional<at::Tensor>& v,
                      const std::optional<at::Tensor>& m_scales,
                      const std::optional<at::Tensor>& v_scales,
                      const std::optional<at::Tensor>& master, int64_t step, int64_t index,
                      int64_t seed, const std::optional<at::Tensor>& grad_scale,
                      const UpdateNumbers& numbers, bool transposed);

}  // namespace compact
