// SPDX-License-Identifier: Apache-2.0
#include "compact/python/meter.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include <stdexcept>

namespace compact {

namespace profiler = torch::profiler::impl;

// Torch takes this object for a ProfilerStateBase.
struct Meter::Count final : profiler::ProfilerStateBase {
  Count()
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled, false,
                                                   /*profile_memory=*/true)) {}
  profiler::ActiveProfilerType profilerType() override {
    return profiler::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    const int64_t live = now += size;
    int64_t most = peak;
    while (live > most && !peak.compare_exchange_weak(most, live)) {
    }
  }
  std::atomic<int64_t> now = 0, peak = 0;
};

Meter::Meter() : count_(std::make_shared<Count>()) {}
Meter::~Meter() = default;

void Meter::start() {
  if (guard_ || c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) {
    throw std::logic_error("[meter] it runs already, or a profiler does on this thread");
  }
  guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, count_);
}

void Meter::stop() { guard_.reset(); }
int64_t Meter::now() const { return count_->now; }
int64_t Meter::peak() const { return count_->peak; }
void Meter::reset_peak() { count_->peak = count_->now.load(); }

}  // namespace compact
