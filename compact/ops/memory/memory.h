// SPDX-License-Identifier: Apache-2.0
// Exact byte counts of tensor memory: a counting allocator on the CPU, the same without memory on
// the meta device, the caching allocator's own counters on CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "compact/base/function_ref.h"

namespace compact {

// An allocation that would pass the limit, or that the system refused (limit: the largest int64).
// Nothing was allocated. Sizes in bytes.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(int64_t requested, int64_t live, int64_t limit);
  int64_t requested, live, limit;
};
// The message in one line where the error is OutOfMemory or a GPU's; nullopt for other errors.
std::optional<std::string> out_of_memory(const std::exception& error);

// Replaces torch's allocators for CPU and meta by ones that count requested bytes, for the life of
// the process. To be called before the first tensor is made; a second call does nothing. Tensors
// made before are freed as before and not counted. Freed CPU memory stays with the process for the
// next step. Meta tensors get addresses, one for each storage, which must not be read.
void install_counting_allocator();

// Limits live bytes on the CPU; beyond it allocations throw OutOfMemory. nullopt: no limit.
void limit_cpu_bytes(std::optional<int64_t> limit);

// Limits what the caching allocator holds on a CUDA device, freed blocks included; beyond it
// allocations throw c10::OutOfMemoryError. nullopt: no limit but the device's memory. Throws
// InputError where the limit is above that or not positive.
void limit_cuda_bytes(at::Device device, std::optional<int64_t> limit);
// `limit` as a fraction of a device's `total` bytes; throws as limit_cuda_bytes().
double memory_fraction(std::optional<int64_t> limit, int64_t total);

// Bytes of tensors that live now; the most since reset_peak. On CPU and meta 0 without the counting
// allocator. On CUDA what the caching allocator has given out (allocated), and holds (reserved).
int64_t live_bytes(at::Device device);
int64_t peak_bytes(at::Device device);
int64_t reserved_bytes(at::Device device);  // peak; on CPU and meta the same as peak_bytes
void reset_peak(at::Device device);
// Gives back what CUDA's caching allocator holds and no tensor uses; nothing on other devices.
void free_cached(at::Device device);

// The most host memory since reset_peak(at::kMeta) that meta tensors stood for (MetaOnHost), as
// asked for and as torch's allocator of pinned memory takes it: every tensor rounded up to a power
// of two.
struct HostBytes {
  int64_t asked = 0, pinned = 0;
};
HostBytes peak_host_bytes();
bool lies_on_host(const at::Tensor& t);  // whether t is such a tensor

// Measures the memory of operations on the CPU in the middle of other work: its destructor puts
// back the peak that it found. To be made before the operands.
class CpuProbe {
 public:
  CpuProbe();
  ~CpuProbe();
  CpuProbe(const CpuProbe&) = delete;
  CpuProbe& operator=(const CpuProbe&) = delete;

  // The result of `run`, and its temporaries: the peak less what lives once it has returned.
  template <class F>
  auto beside(const F& run) const {
    reset_peak(at::kCPU);
    auto results = run();
    return std::pair(std::move(results), peak_bytes(at::kCPU) - live_bytes(at::kCPU));
  }

 private:
  int64_t before_;
};

// While it lives, the counting allocator calls `see` with the bytes of each CPU tensor of this
// thread before it allocates them. An exception of `see` ends the operation that allocates.
class WatchAllocations {
 public:
  explicit WatchAllocations(FunctionRef<void(int64_t)> see);
  ~WatchAllocations();
  WatchAllocations(const WatchAllocations&) = delete;
  WatchAllocations& operator=(const WatchAllocations&) = delete;

 private:
  FunctionRef<void(int64_t)> see_;
  FunctionRef<void(int64_t)>* before_;
};

// Waits for everything that was started on the device.
void synchronize(at::Device device);

}  // namespace compact
