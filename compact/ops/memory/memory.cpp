// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/memory.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef COMPACT_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <limits>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/memory/block_cache.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct Counter {
  std::atomic<int64_t> live{0}, peak{0}, limit{kNoLimit};

  void add(int64_t bytes) {
    const int64_t now = live += bytes, most = limit;
    if (now > most) {
      live -= bytes;
      throw OutOfMemory(bytes, now - bytes, most);
    }
    for (int64_t p = peak; now > p && !peak.compare_exchange_weak(p, now);) {
    }
  }
  void forget_peak() { peak = live.load(); }
};
Counter g_cpu, g_meta;
Counter g_host, g_pinned;  // of meta tensors that stand for host memory

// Every block starts with the bytes asked for, at a distance that keeps tensors aligned as torch
// does.
constexpr size_t kAlignment = 64;

int64_t& size_of(void* data) {
  return *reinterpret_cast<int64_t*>(static_cast<char*>(data) - kAlignment);
}
size_t whole_size(int64_t requested) {
  return (static_cast<size_t>(requested) + 2 * kAlignment - 1) / kAlignment * kAlignment;
}

// Blocks that wait may take an eighth (and 32 MiB) beyond the peak of those in use, within the
// limit, so that steps whose tensors are alike but not the same need few new pages.
BlockCache& large_blocks() {
  static auto* const blocks = new BlockCache([](size_t used) {  // outlives every tensor
    const size_t more = std::max(used / 8, size_t{32} << 20);
    return std::min(used + more, static_cast<size_t>(g_cpu.limit.load()));
  });
  return *blocks;
}

void release(void* data) {
  if (!data) return;
  const int64_t bytes = size_of(data);
  trace_free(c10::kCPU, data, bytes);
  g_cpu.live -= bytes;
  char* const block = static_cast<char*>(data) - kAlignment;
  const size_t whole = whole_size(bytes);
  BlockCache::takes(whole) ? large_blocks().free(block, whole) : std::free(block);
}

thread_local FunctionRef<void(int64_t)>* t_watch = nullptr;

void* acquire(int64_t requested) {
  if (t_watch) (*t_watch)(requested);
  g_cpu.add(requested);
  const size_t whole = whole_size(requested);
  void* const block = BlockCache::takes(whole) ? large_blocks().allocate(whole)
                                               : std::aligned_alloc(kAlignment, whole);
  if (!block) {
    g_cpu.live -= requested;
    throw OutOfMemory(requested, g_cpu.live, kNoLimit);
  }
  void* const data = static_cast<char*>(block) + kAlignment;
  size_of(data) = requested;
  trace_allocate(c10::kCPU, data, requested);
  return data;
}

// Stands for the memory of a meta tensor: its address is the tensor's.
struct MetaBlock {
  int64_t bytes;
  bool on_host;

  // The bytes that torch's allocator of pinned memory would take for it.
  int64_t pinned() const {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
  }
};

void release_meta(void* data) {
  if (!data) return;
  auto* const block = static_cast<MetaBlock*>(data);
  if (block->on_host) {
    g_host.live -= block->bytes;
    g_pinned.live -= block->pinned();
  } else {
    trace_free(c10::kMeta, data, block->bytes);
    g_meta.live -= block->bytes;
  }
  delete block;
}

void* acquire_meta(int64_t requested) {
  auto* const block = new MetaBlock{requested, MetaOnHost::active()};
  if (block->on_host) {
    g_host.add(requested);
    g_pinned.add(block->pinned());
  } else {
    g_meta.add(requested);
    trace_allocate(c10::kMeta, block, requested);
  }
  return block;
}

// Memory that libraries allocate and free in every product stays with the process, too;
// block_cache.h keeps the blocks of tensors.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes ? acquire(static_cast<int64_t>(bytes)) : nullptr;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes ? acquire_meta(static_cast<int64_t>(bytes)) : nullptr;
    return {data, data, &release_meta, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_meta; }
  void copy_data(void*, const void*, size_t) const override {}
};

Counter& counter_of(at::Device device) { return device.is_meta() ? g_meta : g_cpu; }

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

// CUDA's allocator refuses every call before the device is initialised.
c10::DeviceAllocator& cuda_allocator() {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  return *c10::getDeviceAllocator(c10::kCUDA);
}

c10::CachingDeviceAllocator::DeviceStats cuda_stats(at::Device device) {
  return cuda_allocator().getDeviceStats(index_of(device));
}

}  // namespace

OutOfMemory::OutOfMemory(int64_t requested, int64_t live, int64_t limit)
    : std::runtime_error(
          "out of memory: " + format_bytes(requested) + " more than the " + format_bytes(live) +
          " in use" + (limit < kNoLimit ? " would pass the limit of " + format_bytes(limit) : "")),
      requested(requested),
      live(live),
      limit(limit) {}

std::optional<std::string> out_of_memory(const std::exception& error) {
  if (dynamic_cast<const OutOfMemory*>(&error)) return error.what();
  const auto* of_gpu = dynamic_cast<const c10::OutOfMemoryError*>(&error);
  if (!of_gpu) return std::nullopt;
  const std::string message = of_gpu->what_without_backtrace();
  return message.substr(0, message.find('\n'));
}

void install_counting_allocator() {
  static const bool installed = [] {
    keep_freed_memory();
    pthread_atfork([] { large_blocks().lock(); }, [] { large_blocks().unlock(); },
                   [] { large_blocks().unlock(); });
    // They outlive every tensor.
    c10::SetAllocator(c10::kCPU, new CountingAllocator, /*priority=*/100);
    c10::SetAllocator(c10::kMeta, new CountingMetaAllocator, /*priority=*/100);
    return true;
  }();
  (void)installed;
}

void limit_cpu_bytes(std::optional<int64_t> limit) { g_cpu.limit = limit.value_or(kNoLimit); }

WatchAllocations::WatchAllocations(FunctionRef<void(int64_t)> see)
    : see_(see), before_(std::exchange(t_watch, &see_)) {}
WatchAllocations::~WatchAllocations() { t_watch = before_; }

double memory_fraction(std::optional<int64_t> limit, int64_t total) {
  if (!limit) return 1;
  COMPACT_CHECK(*limit > 0, "the limit of a GPU's memory must be positive, is ", *limit, " B");
  COMPACT_CHECK(*limit <= total, "a budget of ", format_bytes(*limit), " (", format_count(*limit),
                " B) is above the ", format_bytes(total), " (", format_count(total),
                " B) of the GPU's memory");
  return std::clamp(static_cast<double>(*limit) / static_cast<double>(total), 0.0, 1.0);
}

void limit_cuda_bytes(at::Device device, std::optional<int64_t> limit) {
#ifdef COMPACT_CUDA
  const auto [free, total] = cuda_allocator().getMemoryInfo(index_of(device));
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      memory_fraction(limit, static_cast<int64_t>(total)), index_of(device));
#else
  fail("this build has no kernels for CUDA; configure with the preset `cuda`");
#endif
}

int64_t live_bytes(at::Device device) {
  return device.is_cuda() ? cuda_stats(device).allocated_bytes[kAll].current
                          : counter_of(device).live.load();
}

int64_t peak_bytes(at::Device device) {
  return device.is_cuda() ? cuda_stats(device).allocated_bytes[kAll].peak
                          : counter_of(device).peak.load();
}

int64_t reserved_bytes(at::Device device) {
  return device.is_cuda() ? cuda_stats(device).reserved_bytes[kAll].peak
                          : counter_of(device).peak.load();
}

void free_cached(at::Device device) {
  if (device.is_cuda()) cuda_allocator().emptyCache();
}

void reset_peak(at::Device device) {
  if (device.is_cuda()) {
    cuda_allocator().resetPeakStats(index_of(device));
    return;
  }
  counter_of(device).forget_peak();
  if (!device.is_meta()) return;
  g_host.forget_peak();
  g_pinned.forget_peak();
}

bool lies_on_host(const at::Tensor& t) {
  if (!t.defined() || !t.is_meta()) return false;
  const c10::DataPtr& data = t.storage().data_ptr();
  return data.get() && data.get_deleter() == &release_meta &&
         static_cast<const MetaBlock*>(data.get())->on_host;
}

HostBytes peak_host_bytes() { return {g_host.peak, g_pinned.peak}; }

CpuProbe::CpuProbe() : before_(g_cpu.peak) {}
CpuProbe::~CpuProbe() { g_cpu.peak = before_; }

void synchronize(at::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(index_of(device));
}

}  // namespace compact
