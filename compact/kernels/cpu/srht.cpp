// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/hadamard.h"

namespace compact::kernels::cpu {
namespace {

// Floats on a cache line, with a register's width to spare at the end.
class Row {
 public:
  explicit Row(int64_t n)
      : data_(new (std::align_val_t{64}) float[static_cast<size_t>(n + 2 * kLanes)]()) {}
  float* get() const { return data_.get(); }
  operator float*() const { return data_.get(); }  // NOLINT: implicit on purpose

 private:
  struct Delete {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Delete> data_;
};

float sign_of(const uint32_t* signs, int64_t bit) {
  return signs[bit / 32] >> (bit % 32) & 1 ? -1.0f : 1.0f;
}

// The chosen coordinates in blocks of 16: a mask for each block, and how many precede it.
struct Choice {
  explicit Choice(const SrhtPlan& plan)
      : index(plan.index), n(plan.n), r(plan.r), mask(static_cast<size_t>((n + 15) / 16)) {
    for (int64_t j = 0; j < r; ++j) {
      mask[static_cast<size_t>(index[j] / 16)] |= static_cast<uint16_t>(1u << (index[j] % 16));
    }
  }

  // out[j] = x[index[j]]. Writes up to a register's width beyond r.
  void gather(const float* x, float* out) const {
#if defined(__AVX512F__)
    for (size_t b = 0; b < mask.size(); ++b) {
      _mm512_storeu_ps(out, _mm512_maskz_compress_ps(mask[b], _mm512_loadu_ps(x + 16 * b)));
      out += std::popcount(mask[b]);
    }
#else
    for (int64_t j = 0; j < r; ++j) out[j] = x[index[j]];
#endif
  }
  // x = 0 except x[index[j]] = z[j]. Reads and writes up to a register's width beyond.
  void scatter(const float* z, float* x) const {
#if defined(__AVX512F__)
    for (size_t b = 0; b < mask.size(); ++b) {
      _mm512_storeu_ps(x + 16 * b, _mm512_maskz_expand_ps(mask[b], _mm512_loadu_ps(z)));
      z += std::popcount(mask[b]);
    }
#else
    std::fill(x, x + n, 0.0f);
    for (int64_t j = 0; j < r; ++j) x[index[j]] = z[j];
#endif
  }

  const int32_t* index;
  int64_t n, r;
  std::vector<uint16_t> mask;
};

// Parameters of both directions. Signs and 1 / sqrt(k) are one factor per coordinate and transform.
struct Transform {
  explicit Transform(const SrhtPlan& plan)
      : n(plan.n),
        k(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(plan.n)))),
        gap(n - k),
        norm(1 / std::sqrt(static_cast<float>(k))),
        scale(std::sqrt(static_cast<float>(n) / static_cast<float>(plan.r))),
        choice(plan) {}
  int64_t n, k, gap;
  float norm, scale;
  Choice choice;
};

}  // namespace

void srht(const Srht& a, const Launch& launch) {
  if (a.rows == 0 || a.plan.r == 0) return;
  const Transform t(a.plan);
  const Row first(t.k), second(t.k);
  for (int64_t i = 0; i < t.k; ++i) first[i] = sign_of(a.plan.signs, i) * t.norm;
  for (int64_t i = 0; i < t.k && t.gap > 0; ++i) {
    second[i] = sign_of(a.plan.signs, t.n + i) * t.norm;
    if (t.gap + i >= t.k) second[i] *= sign_of(a.plan.signs, t.gap + i);
  }
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(a.rows, row_grain(t.n), [&](int64_t begin, int64_t end) {
      const Row buffer(t.n), picked(a.plan.r);
      for (int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
        T* z = static_cast<T*>(a.z) + row * a.plan.r;
        hadamard(x, first.get(), buffer.get(), t.k);
        if (t.gap > 0) {
          for_lanes(t.gap, [&](int64_t i, auto count) {
            store(buffer + t.k + i, load(x + t.k + i, count), count);
          });
          hadamard(buffer + t.gap, second.get(), buffer + t.gap, t.k);
        }
        t.choice.gather(buffer, picked);
        for_lanes(a.plan.r,
                  [&](int64_t j, auto count) { store(z + j, load(picked + j) * t.scale, count); });
      }
    });
  });
}

void srht_transpose(const SrhtTranspose& a, const Launch& launch) {
  if (a.rows == 0 || a.plan.r == 0) return;
  const Transform t(a.plan);
  const Row norm(t.k), middle(t.k), last(t.n);
  for (int64_t i = 0; i < t.k; ++i) {
    norm[i] = t.norm;
    // Without a gap there is one transform, and no signs of a second one.
    const bool plain = t.gap == 0 || i < t.gap;
    middle[i] = t.norm * (plain ? 1.0f : sign_of(a.plan.signs, t.n + i - t.gap));
  }
  for (int64_t i = 0; i < t.n; ++i) {
    last[i] = sign_of(a.plan.signs, i);
    if (i >= t.k) last[i] *= sign_of(a.plan.signs, t.n + i - t.gap);
  }
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(a.rows, row_grain(t.n), [&](int64_t begin, int64_t end) {
      const Row buffer(t.n), coordinates(a.plan.r);
      for (int64_t row = begin; row < end; ++row) {
        const T* z = static_cast<const T*>(a.z) + row * a.plan.r;
        for_lanes(a.plan.r, [&](int64_t j, auto count) {
          store(coordinates + j, load(z + j, count) * t.scale, count);
        });
        t.choice.scatter(coordinates, buffer);
        if (t.gap > 0) hadamard(buffer + t.gap, norm.get(), buffer + t.gap, t.k);
        hadamard(buffer.get(), middle.get(), buffer.get(), t.k);
        float* x = a.x + row * t.n;
        for_lanes(t.n, [&](int64_t i, auto count) {
          store(x + i, load(buffer + i) * load(last + i), count);
        });
      }
    });
  });
}

}  // namespace compact::kernels::cpu
