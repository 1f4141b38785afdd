// SPDX-License-Identifier: Apache-2.0
// The subsampled randomized Hadamard transform, for any n: see kernels::SrhtPlan. Signs and index
// are made on the CPU from the key, so that they are the same bits on every device.
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/codecs/projection_types_impl.h"

namespace compact {
namespace {

constexpr uint64_t kSignStream = 1, kIndexStream = 2;

// Bits for n signs and, where n is not a power of two, more for the largest power of two below it.
at::Tensor make_signs(int64_t n, uint64_t key, at::Device device) {
  const auto k = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  const int64_t words = ((k < n ? n + k : n) + 31) / 32;
  if (device.is_meta()) return at::empty({words}, at::device(device).dtype(at::kInt));
  at::Tensor signs = at::empty({words}, at::kInt);
  for (int64_t i = 0; i < words; ++i) {
    const Random4 random = philox(key, static_cast<uint64_t>(i / 4), kSignStream);
    signs.data_ptr<int32_t>()[i] = static_cast<int32_t>(random.v[i % 4]);
  }
  return signs.to(device);
}

// r distinct numbers below n, ascending: the first r places of a Fisher-Yates shuffle.
at::Tensor make_index(int64_t n, int64_t r, uint64_t key, at::Device device) {
  if (device.is_meta()) return at::empty({r}, at::device(device).dtype(at::kInt));
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < r; ++i) {
    const Random4 random = philox(key, static_cast<uint64_t>(i), kIndexStream);
    const uint64_t word = uint64_t{random.v[1]} << 32 | random.v[0];
    std::swap(all[i], all[i + static_cast<int64_t>(word % static_cast<uint64_t>(n - i))]);
  }
  std::sort(all.begin(), all.begin() + r);
  return at::tensor(at::ArrayRef<int32_t>(all.data(), static_cast<size_t>(r)), at::kInt).to(device);
}

}  // namespace

void check_srht_row(int64_t n, const kernels::Gpu& gpu) {
  const int64_t bytes = kernels::srht_row_bytes(n);
  COMPACT_CHECK(bytes <= gpu.shared_memory, "[srht] a row of ", n, " needs ", bytes,
                " bytes of shared memory, a block of ", gpu.name, " has ", gpu.shared_memory,
                "; other types of projection have no such limit");
}

namespace {

class Srht final : public Projection {
 public:
  Srht(int64_t n, int64_t r, uint64_t key, at::Device device) : Projection(n, r, device) {
    COMPACT_CHECK(n < std::numeric_limits<int32_t>::max(), "[srht] n must be below 2^31, is ", n);
    if ((device.is_meta() ? meta_device() : device.type()) == at::kCUDA) {
      check_srht_row(n, kernels::planned_gpu());
    }
    signs_ = make_signs(n, key, device);
    index_ = make_index(n, r, key, device);
  }

  at::Tensor apply(const at::Tensor& x) const override {
    at::Tensor rows = x.detach().reshape({-1, n_});
    if (rows.stride(1) != 1) rows = rows.contiguous();
    at::Tensor z = at::empty({rows.size(0), r_}, rows.options());
    backend_of(z).srht({.plan = plan(),
                        .x = rows.data_ptr(),
                        .z = z.data_ptr(),
                        .rows = rows.size(0),
                        .x_stride = rows.stride(0),
                        .type = type_of(rows)},
                       launch_for(z));
    return z;
  }

  at::Tensor transpose(const at::Tensor& z) const override {
    const at::Tensor dense = z.detach().contiguous();
    at::Tensor x = at::empty({z.size(0), n_}, z.options().dtype(at::kFloat).requires_grad(false));
    backend_of(x).srht_transpose({.plan = plan(),
                                  .z = dense.data_ptr(),
                                  .x = floats_of(x),
                                  .rows = z.size(0),
                                  .type = type_of(dense)},
                                 launch_for(x));
    return x;
  }

  at::Tensor matrix() const override {
    return transpose(at::eye(r_, at::device(device_).dtype(at::kFloat))).t().contiguous();
  }

  int64_t bytes() const override { return static_cast<int64_t>(signs_.nbytes() + index_.nbytes()); }

 private:
  kernels::SrhtPlan plan() const {
    return {.signs = static_cast<const uint32_t*>(signs_.data_ptr()),
            .index = static_cast<const int32_t*>(index_.data_ptr()),
            .n = n_,
            .r = r_};
  }

  at::Tensor signs_;  // int32, read as bits
  at::Tensor index_;  // [r]
};

}  // namespace

const ProjectionInfo srht_projection = {
    .name = "srht",
    .summary = "subsampled randomized Hadamard transform: orthogonal columns, n log n adds a row",
    .relative_error = [](int64_t n, int64_t r) { return static_cast<double>(n) / r - 1; },
    .make = [](int64_t n, int64_t r, uint64_t key, at::TensorOptions options) -> ProjectionPtr {
      return std::make_shared<Srht>(n, r, key, options.device());
    },
};

}  // namespace compact
