// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/dropout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd.h"

namespace compact {

void drop_into(const at::Tensor& y, const at::Tensor& x, double p, uint64_t key) {
  check_like("dropout", x, {{"result", y}});
  COMPACT_CHECK(x.is_contiguous() && y.is_contiguous() && x.numel() == y.numel(),
                "[dropout] needs two contiguous tensors of one size, not ", x.sizes(), " and ",
                y.sizes());
  backend_of(x).dropout(
      {.x = x.const_data_ptr(),
       .y = y.data_ptr(),
       .count = x.numel(),
       .key = key,
       .dropped = static_cast<uint32_t>(std::min<int64_t>(std::llround(p * 65536), 65535)),
       .type = type_of(x)},
      launch_for(x));
}

at::Tensor dropped(at::Tensor x, double p, uint64_t key) {
  const at::Tensor y = owned(x) ? x : at::empty_like(x, at::MemoryFormat::Contiguous);
  drop_into(y, x.contiguous(), p, key);
  return y;
}

}  // namespace compact
