// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/code_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace compact {

CodeRows rows_of(const at::Tensor& dense, Along along) {
  const int64_t all = dense.numel(), dimensions = dense.dim();
  if (all > 0 && along == Along::kLast && dimensions > 0) {
    const int64_t n = dense.size(-1), next = dense.stride(-1);
    if (n == 1 || next == 1) return {.rows = all / n, .inner = n};
    return {.outer = n, .rows = next, .inner = 1, .samples = all / (n * next)};
  }
  if (all > 0 && along == Along::kChannels && dimensions > 1 && dense.size(1) > 1) {
    const int64_t channels = dense.size(1), inner = dense.stride(1);
    return {.outer = all / (channels * inner), .rows = channels, .inner = inner};
  }
  return {.rows = all > 0 ? 1 : 0, .inner = all};
}

std::optional<CodeRows> rows_apart(std::vector<CodedDimension> view, int64_t offset,
                                   int64_t elements) {
  std::erase_if(view, [](const auto& d) { return d.size == 1 || (d.stride == 0 && !d.apart); });
  std::ranges::stable_sort(view, {}, &CodedDimension::stride);
  view.push_back({1, elements, false});
  // Dimensions of the memory, innermost first: the view's and, apart, what lies between them.
  std::vector<CodedDimension> all{{1, 1, false}};
  int64_t last = 0;  // element of the view's inner dimensions
  for (const CodedDimension& d : view) {
    CodedDimension& within = all.back();
    if (d.stride < within.size * within.stride || offset % d.stride + last >= d.stride) {
      return std::nullopt;
    }
    const int64_t end = std::gcd(within.size * within.stride, d.stride);
    if (end % within.stride != 0) return std::nullopt;
    within.size = end / within.stride;
    if (d.stride > end) all.push_back({d.stride / end, end, true});
    all.push_back(d);
    last += (d.size - 1) * d.stride;
  }
  auto next = all.begin();
  const auto take = [&](bool apart) {
    int64_t size = 1;
    for (; next != all.end() && (next->size == 1 || next->apart == apart); ++next) {
      size *= next->size;
    }
    return size;
  };
  CodeRows rows{.inner = take(false)};
  rows.rows = take(true);
  rows.outer = take(false);
  rows.samples = elements / (rows.outer * rows.rows * rows.inner);
  if (rows.samples == 1) return rows;
  // The longer one of the two parts that a row has in memory.
  if (rows.inner >= rows.outer) return CodeRows{.rows = elements / rows.inner, .inner = rows.inner};
  rows.rows *= std::exchange(rows.inner, 1);
  return rows;
}

at::Tensor in_rows(const at::Tensor& flat, const CodeRows& r) {
  if (r.samples == 1) return flat.reshape({r.outer, r.rows, r.inner});
  return flat.reshape({r.samples, r.outer, r.rows}).contiguous().transpose(1, 2);
}

}  // namespace compact
