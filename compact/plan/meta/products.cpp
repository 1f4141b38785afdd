// SPDX-License-Identifier: Apache-2.0
// Matrix products on the meta device, with what the CPU's library takes beside their results.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "compact/codecs/meta_device.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

// A matrix, or a batch of them, as a product reads it: by rows or by columns, one after another, or
// with strides of its own, as views of larger tensors have them.
struct Operand {
  bool by_rows = true;
  std::vector<int64_t> strides;  // empty: one after another
  auto operator<=>(const Operand&) const = default;

  explicit Operand(const Tensor& t) : by_rows(t.stride(-1) == 1) {
    const int64_t rows = t.size(-2), columns = t.size(-1);
    const int64_t outer = by_rows ? rows : columns, inner = by_rows ? columns : rows;
    const bool apart = outer > 1 && t.stride(by_rows ? -2 : -1) != inner;
    const bool batch_apart = t.dim() == 3 && t.size(0) > 1 && t.stride(0) != rows * columns;
    const bool neither = !by_rows && rows > 1 && t.stride(-2) != 1;
    if (apart || batch_apart || neither) strides = t.strides().vec();
  }
  // Zeros of so many matrices (0: one, without a batch); undefined where they lie too far apart.
  Tensor make(int64_t batch, int64_t rows, int64_t columns, at::ScalarType type) const {
    const auto options = at::device(at::kCPU).dtype(type);
    std::vector<int64_t> sizes = {batch, rows, columns};
    if (batch == 0) sizes.erase(sizes.begin());
    if (strides.empty()) {
      if (!by_rows) std::swap(sizes[sizes.size() - 2], sizes.back());
      const Tensor t = at::zeros(sizes, options);
      return by_rows ? t : t.transpose(-2, -1);
    }
    constexpr int64_t kMostElements = int64_t{1} << 25;
    int64_t elements = 1;
    for (size_t i = 0; i < sizes.size(); ++i) elements += (sizes[i] - 1) * strides[i];
    return elements > kMostElements ? Tensor()
                                    : at::zeros({elements}, options).as_strided(sizes, strides);
  }
  Operand dense() const {
    Operand other = *this;
    other.strides.clear();
    return other;
  }
};

struct ProductSizes {
  int64_t batch, m, k, n;
  auto operator<=>(const ProductSizes&) const = default;
};

// A product may add to its result, and take a factor, which the library holds as a tensor.
struct Sum {
  bool adds = false, scales = false;
  auto operator<=>(const Sum&) const = default;

  Sum() = default;
  Sum(const at::Scalar& beta, const at::Scalar& alpha)
      : adds(beta.toDouble() != 0), scales(alpha.toDouble() != 1) {}
};

// Where a product that is tried would begin to compute.
struct Begins : std::runtime_error {
  Begins() : std::runtime_error("") {}
};

// Bytes beside the result of a product that is tried once; negative where it is not. LibTorch
// copies an operand where it must, then takes what its library needs, then computes: which is not
// waited for.
int64_t tried_product(const ProductSizes& s, const Operand& a, const Operand& b, Sum sum,
                      at::ScalarType type) {
  static std::mutex mutex;
  static std::map<std::tuple<ProductSizes, Operand, Operand, Sum, at::ScalarType>, int64_t> known;
  const std::lock_guard lock(mutex);
  const std::tuple key(s, a, b, sum, type);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const at::NoGradGuard no_grad;
  const CpuProbe probe;
  const Tensor x = a.make(s.batch, s.m, s.k, type), y = b.make(s.batch, s.k, s.n, type);
  if (!x.defined() || !y.defined()) return known[key] = -1;
  const std::vector<int64_t> sizes = {s.batch, s.m, s.n};
  Tensor out = at::empty(at::IntArrayRef(sizes).slice(s.batch == 0), x.options());
  int64_t asked = 0;
  const auto see = [&](int64_t bytes) {
    asked += bytes;
    const auto copies = [&](const Tensor& t) { return bytes == static_cast<int64_t>(t.nbytes()); };
    // LibTorch catches what a product of batches throws, and goes another way.
    const bool factor = bytes <= static_cast<int64_t>(sizeof(double));
    if (s.batch == 0 && !factor && !copies(x) && !copies(y) && !copies(out)) throw Begins();
  };
  try {
    const auto product = probe.beside([&] {
      const WatchAllocations watch(see);
      if (sum == Sum()) return s.batch ? at::bmm_out(out, x, y) : at::mm_out(out, x, y);
      const double beta = sum.adds ? 1 : 0, alpha = sum.scales ? 0.5 : 1;
      return s.batch ? out.baddbmm_(x, y, beta, alpha) : out.addmm_(x, y, beta, alpha);
    });
    return known[key] = product.second;
  } catch (const Begins&) {
    return known[key] = asked;
  }
}

// Bytes that the CPU's matrix library takes beside the result of a [m, k] times b [k, n], or of as
// many of them as a batch holds: packed operands, a block for each thread, a copy of an operand
// whose rows lie apart. It depends on sizes and layout; the real product shows it, with sizes above
// which it no longer grows cut off.
int64_t cpu_product_scratch(const Tensor& a, const Tensor& b, Sum sum) {
  constexpr int64_t kMostSize = 4096, kFewProducts = int64_t{1} << 22;
  const int64_t m = std::min(a.size(-2), kMostSize), k = std::min(a.size(-1), kMostSize),
                n = std::min(b.size(-1), kMostSize);
  if (m == 0 || k == 0 || n == 0 || a.size(0) == 0) return 0;
  // More of a batch take no more, but a few small ones may go another way.
  const int64_t batch =
      a.dim() == 3 ? std::min(a.size(0), std::max<int64_t>(2, kFewProducts / (m * k * n))) : 0;
  const ProductSizes sizes{batch, m, k, n};
  const at::ScalarType type = a.scalar_type();
  const Operand x(a), y(b);
  const int64_t dense = tried_product(sizes, x.dense(), y.dense(), sum, type);
  if (x.strides.empty() && y.strides.empty()) return dense;
  const int64_t apart = tried_product(sizes, x, y, sum, type);
  if (apart < 0) return dense;
  // Copies are as large as the operands, of which a part was tried.
  const auto element = static_cast<int64_t>(a.element_size());
  const int64_t copies = std::max<int64_t>(1, batch) * k * element;
  int64_t best = apart;
  double nearest = 0.1;
  for (const auto& [of_a, of_b] : {std::pair(1, 0), {0, 1}, {1, 1}}) {
    const int64_t part = copies * (of_a * m + of_b * n);
    const double off = std::abs(static_cast<double>(apart - dense) / static_cast<double>(part) - 1);
    if (off >= nearest) continue;
    nearest = off;
    best = apart - part + element * (of_a * a.numel() + of_b * b.numel());
  }
  return best;
}

// Memory that a product takes beside its result.
void beside_product(const Tensor& out, const Tensor& self, const Tensor& a, const Tensor& b,
                    Sum sum = {}) {
  if (converts_bf16(a)) {
    converted_product(out, self, a, b);
  } else if (meta_device() == c10::kCPU) {
    if (self.defined() && !self.is_same(out)) out.copy_(self);
    const int64_t bytes = cpu_product_scratch(a, b, sum);
    if (bytes > 0) scratch_on(a, bytes);
  }
}

void check_types(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected operands of one type, are ",
              a.scalar_type(), " and ", b.scalar_type());
}
// The sizes of a product of matrices (kDim 2), or of batches of them (3).
template <int kDim>
std::vector<int64_t> sizes_of(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == kDim && b.dim() == kDim && a.size(-1) == b.size(-2) &&
                  (kDim == 2 || a.size(0) == b.size(0)),
              kDim == 2 ? "mm" : "bmm", ": shapes ", a.sizes(), " and ", b.sizes(),
              " cannot be multiplied");
  check_types(a, b);
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return sizes;
}
// The same of a sum with `self`.
template <int kDim>
std::vector<int64_t> sizes_of(const Tensor& self, const Tensor& a, const Tensor& b) {
  std::vector<int64_t> sizes = sizes_of<kDim>(a, b);
  check_types(self, a);
  return sizes;
}
// An `out` of another size becomes as large as the result.
void fit(Tensor& out, at::IntArrayRef sizes) {
  if (out.sizes() != sizes) out.resize_(sizes);
}

// The addend of a product, as large as its result; undefined with beta 0, where nothing of it is
// read or copied.
Tensor added(const Tensor& self, const Tensor& out, const at::Scalar& beta) {
  if (beta.toDouble() == 0) return {};
  return self.is_same(out) ? self : self.expand(out.sizes());
}

template <int kDim>
Tensor mm(const Tensor& a, const Tensor& b) {
  Tensor out = at::empty(sizes_of<kDim>(a, b), a.options());
  beside_product(out, {}, a, b);
  return out;
}
template <int kDim>
Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  fit(out, sizes_of<kDim>(a, b));
  beside_product(out, {}, a, b);
  return out;
}
template <int kDim>
Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const at::Scalar& beta,
             const at::Scalar& alpha) {
  Tensor out = at::empty(sizes_of<kDim>(self, a, b), a.options());
  beside_product(out, added(self, out, beta), a, b, {beta, alpha});
  return out;
}
template <int kDim>
Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const at::Scalar& beta,
                  const at::Scalar& alpha, Tensor& out) {
  fit(out, sizes_of<kDim>(self, a, b));
  beside_product(out, added(self, out, beta), a, b, {beta, alpha});
  return out;
}
template <int kDim>
Tensor& addmm_in_place(Tensor& self, const Tensor& a, const Tensor& b, const at::Scalar& beta,
                       const at::Scalar& alpha) {
  const std::vector<int64_t> sizes = sizes_of<kDim>(self, a, b);
  TORCH_CHECK(self.sizes() == sizes, "the result of a product in place must be ",
              at::IntArrayRef(sizes), ", is ", self.sizes());
  beside_product(self, added(self, self, beta), a, b, {beta, alpha});
  return self;
}
// On CUDA alone.
Tensor& addmm_of_type(const Tensor&, const Tensor& a, const Tensor& b, at::ScalarType,
                      const at::Scalar&, const at::Scalar&, Tensor& out) {
  sizes_of<2>(a, b);
  return out;
}

}  // namespace

void add_products(MetaLibrary& library) {
  // They are there, but do not count what the library takes.
  library.replace("mm", &mm<2>);
  library.replace("mm.out", &mm_out<2>);
  library.replace("bmm", &mm<3>);
  library.replace("bmm.out", &mm_out<3>);
  library.replace("addmm", &addmm<2>);
  library.replace("addmm.out", &addmm_out<2>);
  library.replace("addmm_", &addmm_in_place<2>);
  library.replace("baddbmm", &addmm<3>);
  library.replace("baddbmm.out", &addmm_out<3>);
  library.replace("baddbmm_", &addmm_in_place<3>);
  library.add("addmm.dtype_out", &addmm_of_type);
}

}  // namespace compact
