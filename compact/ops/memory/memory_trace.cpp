// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/memory_trace.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace compact {
namespace {

std::atomic<bool> g_on{false};
std::mutex g_mutex;  // of the three below: threads of a kernel may allocate
c10::DeviceType g_type = c10::kCPU;
MemoryTrace g_trace;
int64_t g_moment = -1;  // number of the trace's latest; negative: none
at::CallbackHandle g_products = at::INVALID_CALLBACK_HANDLE;  // of the thread that started it

void record(const MemoryEvent& event) {
  const std::lock_guard lock(g_mutex);
  g_trace.events.push_back(event);
}

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

bool traced(c10::DeviceType type) { return g_on.load(std::memory_order_relaxed) && type == g_type; }

void stop_noting_products() {
  if (g_products == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(std::exchange(g_products, at::INVALID_CALLBACK_HANDLE));
}

void note_product(const at::RecordFunction& f, at::ObserverContext*) {
  constexpr std::string_view kProducts[] = {"aten::mm", "aten::addmm", "aten::bmm",
                                            "aten::baddbmm"};
  if (std::ranges::find(kProducts, std::string_view(f.name())) != std::end(kProducts))
    trace_mark(MemoryEventKind::kProduct);
}

}  // namespace

void start_trace(c10::DeviceType type) {
  const std::lock_guard lock(g_mutex);
  stop_noting_products();  // of a trace that an error ended
  g_trace = {};
  g_moment = -1;
  g_type = type;
  g_on = true;
  if (type == c10::kMeta) {
    g_products = at::addThreadLocalCallback(
        at::RecordFunctionCallback(nullptr, note_product).scopes({at::RecordScope::FUNCTION}));
  }
}

MemoryTrace stop_trace() {
  const std::lock_guard lock(g_mutex);
  stop_noting_products();
  g_on = false;
  g_moment = -1;
  return std::exchange(g_trace, {});
}

void trace_moment(Phase phase, const std::string& part) {
  if (!g_on.load(std::memory_order_relaxed)) return;
  const StepMoment moment{phase, part};
  const std::lock_guard lock(g_mutex);
  auto& moments = g_trace.moments;
  auto found = std::find(moments.begin(), moments.end(), moment);
  if (found == moments.end()) found = moments.insert(found, moment);
  g_moment = found - moments.begin();
  g_trace.events.push_back({.kind = MemoryEventKind::kMoment, .bytes = g_moment});
}

StepMoment traced_moment() {
  const std::lock_guard lock(g_mutex);
  return g_moment < 0 ? StepMoment() : g_trace.moments[static_cast<size_t>(g_moment)];
}

void trace_mark(MemoryEventKind kind) {
  if (g_on.load(std::memory_order_relaxed)) record({.kind = kind});
}

void trace_gradient(const at::Tensor& gradient) {
  if (!g_on.load(std::memory_order_relaxed) || !gradient.defined()) return;
  record({.kind = MemoryEventKind::kGradient,
          .address = number_of(gradient.storage().unsafeGetStorageImpl()->data())});
}

void trace_allocate(c10::DeviceType type, const void* address, int64_t bytes) {
  if (traced(type)) {
    record({.kind = MemoryEventKind::kAllocate, .address = number_of(address), .bytes = bytes});
  }
}

void trace_free(c10::DeviceType type, const void* address, int64_t bytes) {
  if (traced(type)) {
    record({.kind = MemoryEventKind::kFree, .address = number_of(address), .bytes = bytes});
  }
}

MemoryTimeline timeline_of(const MemoryTrace& trace) {
  struct Block {
    int64_t bytes = 0;
    size_t allocated = 0;  // event number
    bool held = false, gradient = false;
  };
  // Blocks in order of allocation; what a block becomes is known only later in the trace.
  std::vector<Block> blocks;
  std::vector<int64_t> block_of(trace.events.size(), -1);
  std::unordered_map<uintptr_t, int64_t> at;
  size_t forward = 0;
  MemoryTimeline result;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const MemoryEvent& e = trace.events[i];
    switch (e.kind) {
      case MemoryEventKind::kAllocate:
        block_of[i] = at[e.address] = static_cast<int64_t>(blocks.size());
        blocks.push_back({.bytes = e.bytes, .allocated = i});
        break;
      case MemoryEventKind::kFree:
        if (const auto found = at.find(e.address); found != at.end()) {
          block_of[i] = found->second;
          at.erase(found);
        }
        break;
      case MemoryEventKind::kGradient:
        if (const auto found = at.find(e.address); found != at.end()) {
          Block& block = blocks[found->second];
          if (!block.gradient) result.gradients += block.bytes;
          block.gradient = true;
        }
        break;
      case MemoryEventKind::kForwardBegin:
        forward = i;
        break;
      case MemoryEventKind::kForwardEnd:
        result.held = 0;
        for (const auto& [address, index] : at) {
          Block& block = blocks[index];
          if (block.allocated < forward) continue;
          block.held = true;
          result.held += block.bytes;
        }
        break;
      case MemoryEventKind::kMoment:
      case MemoryEventKind::kProduct:
        break;
    }
  }
  // Bytes that lived before the trace and were freed in it lower the total.
  std::vector<int64_t> most(trace.moments.size(), INT64_MIN);
  int64_t moment = -1;
  MemoryPeak now;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const MemoryEvent& e = trace.events[i];
    if (e.kind == MemoryEventKind::kMoment) moment = e.bytes;
    if (e.kind == MemoryEventKind::kFree && block_of[i] < 0) now.total -= e.bytes;
    if (block_of[i] >= 0) {
      const Block& block = blocks[block_of[i]];
      const int64_t change = e.kind == MemoryEventKind::kAllocate ? block.bytes : -block.bytes;
      now.total += change;
      if (block.gradient) {
        now.gradients += change;
      } else if (block.held) {
        now.saved += change;
      }
    }
    if (moment >= 0) most[moment] = std::max(most[moment], now.total);
    if (now.total > result.peak.total) {
      result.peak = now;
      result.peak.moment = moment < 0 ? StepMoment() : trace.moments[moment];
    }
  }
  for (size_t i = 0; i < most.size(); ++i) result.moments.emplace_back(trace.moments[i], most[i]);
  return result;
}

}  // namespace compact
