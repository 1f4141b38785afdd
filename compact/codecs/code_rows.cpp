// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/code_rows.h"

namespace compact {

CodeRows rows_of(const at::Tensor& dense, Along along) {
  const int64_t all = dense.numel(), dimensions = dense.dim();
  if (all > 0 && along == Along::kLast && dimensions > 0) {
    return {.rows = all / dense.size(-1), .inner = dense.size(-1)};
  }
  if (all > 0 && along == Along::kChannels && dimensions > 1 && dense.size(1) > 1) {
    const int64_t channels = dense.size(1), inner = dense.stride(1);
    return {.outer = all / (channels * inner), .rows = channels, .inner = inner};
  }
  return {.rows = all > 0 ? 1 : 0, .inner = all};
}

}  // namespace compact
