// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/cpu/parts_impl.h"

namespace compact {
namespace {

using at::Tensor;

// Rows and columns of a tile of the result, and how much of the inner size is summed at a time.
constexpr int64_t kTile = 1024, kInner = 1024;
// Elements of the buffers of a group of small products.
constexpr int64_t kGroupElements = int64_t{1} << 20;

bool by_rows(const Tensor& t) { return t.stride(-1) == 1 || t.stride(-2) != 1; }

// A matrix, or a batch of them, copied to f32 into `buffer` in the order of its memory, so that a
// transposed matrix is read sequentially.
Tensor converted(const Tensor& t, const Tensor& buffer) {
  const bool rows = by_rows(t);
  const Tensor from = rows ? t : t.transpose(-2, -1);
  const Tensor to = buffer.narrow(0, 0, from.numel()).view(from.sizes());
  to.copy_(from);
  return rows ? to : to.transpose(-2, -1);
}

Tensor buffer_of(const Tensor& like, int64_t elements) {
  return at::empty({elements}, like.options().dtype(at::kFloat));
}

// The product of batches, a group of small ones at a time.
void product_of_batches(const Tensor& out, const Tensor& self, const Tensor& a, const Tensor& b,
                        double beta, double alpha) {
  const int64_t count = a.size(0), m = a.size(1), k = a.size(2), n = b.size(2);
  const int64_t elements = m * k + k * n + m * n;
  const bool planned = out.is_meta();
  if (count == 0 || m == 0 || n == 0) return;
  if (k == 0 || elements > kGroupElements) {
    for (int64_t i = 0; i < (planned ? 1 : count); ++i) {
      converted_product(out[i], self.defined() ? self[i] : Tensor(), a[i], b[i], beta, alpha);
    }
    return;
  }
  const bool adds = self.defined() && beta != 0;
  const Parts groups(count, std::max<int64_t>(1, kGroupElements / elements), planned);
  const Tensor of_a = buffer_of(out, groups.size * m * k),
               of_b = buffer_of(out, groups.size * k * n),
               of_out = buffer_of(out, groups.size * m * n);
  for (int64_t i = 0; i < count; i = groups.after(i)) {
    const int64_t size = groups.size_at(i);
    Tensor sum = of_out.narrow(0, 0, size * m * n).view({size, m, n});
    if (adds) sum.copy_(self.narrow(0, i, size));
    const Tensor x = converted(a.narrow(0, i, size), of_a),
                 y = converted(b.narrow(0, i, size), of_b);
    if (!adds && alpha == 1) {
      at::bmm_out(sum, x, y);
    } else {
      sum.baddbmm_(x, y, adds ? beta : 0, alpha);
    }
    out.narrow(0, i, size).copy_(sum);
  }
}

}  // namespace

void converted_product(const Tensor& out, const Tensor& self, const Tensor& a, const Tensor& b,
                       double beta, double alpha) {
  if (a.dim() == 3) return product_of_batches(out, self, a, b, beta, alpha);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (m == 0 || n == 0) return;
  const bool adds = self.defined() && beta != 0;
  if (k == 0) {
    if (!adds) {
      out.zero_();
    } else {
      out.copy_(self.to(at::kFloat).mul_(beta));
    }
    return;
  }
  const bool planned = out.is_meta();
  const Parts rows(m, kTile, planned), columns(n, kTile, planned), inner(k, kInner, planned);
  const Tensor of_a = buffer_of(out, rows.size * inner.size),
               of_b = buffer_of(out, columns.size * inner.size),
               of_out = buffer_of(out, rows.size * columns.size);
  for (int64_t j = 0; j < n; j = columns.after(j)) {
    const int64_t width = columns.size_at(j);
    Tensor y;
    for (int64_t i = 0; i < m; i = rows.after(i)) {
      const int64_t height = rows.size_at(i);
      const auto tile = [&](const Tensor& t) { return t.narrow(0, i, height).narrow(1, j, width); };
      Tensor sum = of_out.narrow(0, 0, height * width).view({height, width});
      if (adds) sum.copy_(tile(self));
      for (int64_t l = 0; l < k; l = inner.after(l)) {
        const int64_t depth = inner.size_at(l);
        const Tensor x = converted(a.narrow(0, i, height).narrow(1, l, depth), of_a);
        // Where depth == k these columns of b are whole, so they serve all rows of a.
        if (i == 0 || depth < k) {
          y = converted(b.narrow(0, l, depth).narrow(1, j, width), of_b);
        }
        if (l == 0 && !adds && alpha == 1) {
          at::mm_out(sum, x, y);
        } else {
          sum.addmm_(x, y, l == 0 ? (adds ? beta : 0) : 1, alpha);
        }
      }
      tile(out).copy_(sum);
    }
  }
}

}  // namespace compact
