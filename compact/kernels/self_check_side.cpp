// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/self_check_side_impl.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "compact/base/check.h"

namespace compact::kernels {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kPattern{0xAB};

#if defined(__SANITIZE_ADDRESS__)
void host_guard(void* p, size_t bytes, bool on) {
  on ? __asan_poison_memory_region(p, bytes) : __asan_unpoison_memory_region(p, bytes);
}
constexpr auto kHostGuard = host_guard;
#else
constexpr decltype(Memory::guard) kHostGuard = nullptr;
#endif

double value_at(std::span<const std::byte> bytes, bool f32, size_t i) {
  if (f32) {
    float x;
    std::memcpy(&x, bytes.data() + i * sizeof(float), sizeof(float));
    return x;
  }
  BFloat16 x;
  std::memcpy(&x, bytes.data() + i * sizeof(BFloat16), sizeof(BFloat16));
  return load(x);
}

double root_mean_square(std::span<const std::byte> bytes, bool f32) {
  const size_t count = bytes.size() / (f32 ? sizeof(float) : sizeof(BFloat16));
  double sum = 0;
  size_t finite = 0;
  for (size_t i = 0; i < count; ++i) {
    const double x = value_at(bytes, f32, i);
    if (!std::isfinite(x)) continue;
    sum += x * x;
    ++finite;
  }
  return finite ? std::sqrt(sum / static_cast<double>(finite)) : 0;
}

}  // namespace

Memory host_memory() {
  return {.allocate =
              [](size_t bytes) {
                void* p = std::aligned_alloc(kGuard, (bytes + kGuard - 1) / kGuard * kGuard);
                if (!p) throw std::bad_alloc();
                return p;
              },
          .release = [](void* p) { std::free(p); },
          .copy = [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
          .guard = kHostGuard};
}

void Side::guard(const Entry& e, bool on) const {
  if (!memory_.guard) return;
  auto* p = static_cast<std::byte*>(e.base);
  memory_.guard(p, e.begin, on);
  memory_.guard(p + e.begin + e.bytes, e.host.size() - e.begin - e.bytes, on);
}

Side::~Side() {
  for (const Entry& e : entries_) {
    guard(e, false);
    memory_.release(e.base);
  }
}

void* Side::put(const char* name, std::span<const std::byte> bytes, size_t element, Kind kind) {
  const size_t begin = kGuard + static_cast<size_t>(shift_) * element;
  Entry e{name, kind, begin, bytes.size(), {}, nullptr};
  e.host.assign(begin + bytes.size() + kGuard, kPattern);
  if (!bytes.empty()) std::memcpy(e.host.data() + begin, bytes.data(), bytes.size());
  e.base = memory_.allocate(e.host.size());
  memory_.copy(e.base, e.host.data(), e.host.size());
  guard(e, true);
  entries_.push_back(std::move(e));
  return static_cast<std::byte*>(entries_.back().base) + begin;
}

void* Side::tensor(const char* name, std::span<const float> values, Type type) {
  if (type == Type::kFloat32) {
    return put(name, std::as_bytes(values), sizeof(float), Kind::kFloat32);
  }
  std::vector<BFloat16> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) store(rounded[i], values[i]);
  return put(name, std::as_bytes(std::span(rounded)), sizeof(BFloat16), Kind::kBFloat16);
}

void* Side::blank(const char* name, int64_t count, Type type) {
  const bool f32 = type == Type::kFloat32;
  const size_t element = f32 ? sizeof(float) : sizeof(BFloat16);
  const std::vector<std::byte> garbage(static_cast<size_t>(count) * element, kPattern);
  return put(name, garbage, element, f32 ? Kind::kFloat32 : Kind::kBFloat16);
}

uint8_t* Side::blank_bytes(const char* name, int64_t count) {
  const std::vector<std::byte> garbage(static_cast<size_t>(count), kPattern);
  return static_cast<uint8_t*>(put(name, garbage, 1, Kind::kData));
}

float* Side::scratch(const char* name, int64_t count) {
  const std::vector<std::byte> garbage(static_cast<size_t>(count) * sizeof(float), kPattern);
  return static_cast<float*>(put(name, garbage, sizeof(float), Kind::kScratch));
}

void Side::fetch() {
  for (Entry& e : entries_) {
    guard(e, false);
    memory_.copy(e.host.data(), e.base, e.host.size());
  }
}

std::string Side::difference(const Side& want, double tolerance, double& worst) const {
  for (size_t t = 0; t < entries_.size(); ++t) {
    const Entry &got = entries_[t], &other = want.entries_[t];
    for (size_t i = 0; i < got.host.size(); ++i) {
      const bool inside = i >= got.begin && i < got.begin + got.bytes;
      if (!inside && got.host[i] != kPattern) {
        return cat(got.name, ": wrote outside, at byte ",
                   static_cast<int64_t>(i) - static_cast<int64_t>(got.begin), " of ", got.bytes);
      }
    }
    if (got.kind == Kind::kScratch) continue;
    const auto ours = std::span(got.host).subspan(got.begin, got.bytes);
    const auto theirs = std::span(other.host).subspan(other.begin, other.bytes);
    if (got.kind == Kind::kData) {
      if (!std::equal(ours.begin(), ours.end(), theirs.begin()))
        return cat(got.name, ": other bytes");
      continue;
    }
    const bool f32 = got.kind == Kind::kFloat32;
    const double size = tolerance * root_mean_square(theirs, f32);
    const size_t count = got.bytes / (f32 ? sizeof(float) : sizeof(BFloat16));
    for (size_t i = 0; i < count; ++i) {
      const double a = value_at(ours, f32, i), b = value_at(theirs, f32, i);
      if ((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b))) {
        continue;
      }
      const double step = f32 ? tolerance : tolerance + 1.0 / 128;
      const double allowed = tolerance > 0 ? step * std::abs(b) + size : 0;
      const double error = std::abs(a - b);
      if (!(error <= allowed)) {
        return cat(got.name, "[", i, "] is ", a, ", the reference has ", b);
      }
      if (allowed > 0) worst = std::max(worst, error / allowed);
    }
  }
  return {};
}

}  // namespace compact::kernels
