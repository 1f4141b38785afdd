// SPDX-License-Identifier: Apache-2.0
// Matrix products on the meta device, with what the CPU's library takes beside their results.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "compact/codecs/meta_device.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

// Bytes that the CPU's matrix library takes beside the result of a [m, k] times b [k, n], or of as
// many of them as a batch holds: packed operands, a block for each thread. It depends on sizes and
// layout; the real product shows it, with sizes above which it no longer grows cut off. Products
// too large to try count nothing: there it is far below a thousandth of the operands.
int64_t cpu_product_scratch(const Tensor& a, const Tensor& b, bool add) {
  constexpr int64_t kMostSize = 4096, kFewProducts = int64_t{1} << 22;
  constexpr double kMostProducts = 3e10;
  const bool batched = a.dim() == 3;
  const int64_t m = std::min(a.size(-2), kMostSize), k = std::min(a.size(-1), kMostSize),
                n = std::min(b.size(-1), kMostSize);
  if (m == 0 || k == 0 || n == 0 || a.size(0) == 0) return 0;
  if (static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n) > kMostProducts) {
    return 0;
  }
  // More of a batch take no more, but a few small ones may go another way.
  const int64_t batch =
      batched ? std::min(a.size(0), std::max<int64_t>(2, kFewProducts / (m * k * n))) : 0;
  const bool rows_a = a.stride(-1) == 1, rows_b = b.stride(-1) == 1;
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, bool, at::ScalarType>,
                  int64_t>
      known;
  const std::lock_guard lock(mutex);
  const std::tuple key(batch, m, k, n, rows_a, rows_b, add, a.scalar_type());
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const at::NoGradGuard no_grad;
  const CpuProbe probe;
  const auto make = [&](int64_t rows, int64_t columns, bool by_rows) {
    std::vector<int64_t> sizes = {batch, by_rows ? rows : columns, by_rows ? columns : rows};
    if (!batched) sizes.erase(sizes.begin());
    const Tensor t = at::zeros(sizes, at::device(at::kCPU).dtype(a.scalar_type()));
    return by_rows ? t : t.transpose(-2, -1);
  };
  const Tensor x = make(m, k, rows_a), y = make(k, n, rows_b);
  Tensor out = make(m, n, true);
  const auto product = probe.beside([&] {
    return add ? out.addmm_(x, y) : batched ? at::bmm_out(out, x, y) : at::mm_out(out, x, y);
  });
  return known[key] = product.second;
}

void product_scratch(const Tensor& a, const Tensor& b, bool add) {
  if (meta_device() != c10::kCPU) return;
  const int64_t bytes = cpu_product_scratch(a, b, add);
  if (bytes > 0) scratch_on(a, bytes);
}

void check_product(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "mm: shapes ", a.sizes(),
              " and ", b.sizes(), " cannot be multiplied");
}

Tensor mm(const Tensor& a, const Tensor& b) {
  check_product(a, b);
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product_scratch(a, b, false);
  return out;
}
Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  check_product(a, b);
  product_scratch(a, b, false);
  return out;
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
              "bmm: shapes ", a.sizes(), " and ", b.sizes(), " cannot be multiplied");
  Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  product_scratch(a, b, false);
  return out;
}
Tensor& addmm_in_place(Tensor& self, const Tensor& a, const Tensor& b, const at::Scalar&,
                       const at::Scalar&) {
  check_product(a, b);
  product_scratch(a, b, true);
  return self;
}

}  // namespace

void add_products(MetaLibrary& library) {
  // They are there, but do not count what the library takes.
  library.replace("mm", &mm);
  library.replace("mm.out", &mm_out);
  library.replace("bmm", &bmm);
  library.replace("addmm_", &addmm_in_place);
}

}  // namespace compact
