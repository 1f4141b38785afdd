// SPDX-License-Identifier: Apache-2.0
#include "compact/python/step_trace.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/gpu.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/caching_allocator.h"
#include "compact/plan/gpu_card.h"
#include "compact/plan/options.h"
#include "compact/plan/request.h"

namespace compact {
namespace {

const std::map<std::string, Phase> kPhases = {
    {"batch", Phase::kBatch},         {"forward", Phase::kForward},
    {"loss", Phase::kLoss},           {"backward", Phase::kBackward},
    {"optimizer", Phase::kOptimizer}, {"gradient norm", Phase::kGradientNorm}};

StepTrace* watching_ = nullptr;

// Workspaces of cuBLAS, where plans are for a GPU.
int64_t matrix_library() {
  if (meta_device() != c10::kCUDA) return 0;
  return kProductThreads * cublas_workspace_bytes(kernels::planned_gpu().capability);
}

// With each call of a block that runs several times as moments of its own. The backward pass comes
// to the last call first.
MemoryTrace by_call(MemoryTrace trace) {
  constexpr Phase kOfParts[] = {Phase::kForwardOf, Phase::kBackwardOf, Phase::kBackwardBefore};
  std::map<std::string, std::array<std::vector<MemoryEvent*>, std::size(kOfParts)>> visits;
  for (MemoryEvent& e : trace.events) {
    if (e.kind != MemoryEventKind::kMoment) continue;
    const StepMoment& moment = trace.moments[static_cast<size_t>(e.bytes)];
    const auto phase = std::ranges::find(kOfParts, moment.phase);
    if (phase != std::end(kOfParts)) visits[moment.part][phase - kOfParts].push_back(&e);
  }
  for (const auto& [part, events] : visits) {
    const size_t calls = events[0].size();
    if (events[1].size() != calls || events[2].size() != calls) continue;  // some without gradients
    for (size_t call = 1; call < calls; ++call) {
      for (size_t i = 0; i < std::size(kOfParts); ++i) {
        events[i][i == 0 ? call : calls - 1 - call]->bytes =
            static_cast<int64_t>(trace.moments.size());
        trace.moments.push_back({kOfParts[i], call_name(part, call)});
      }
    }
  }
  return trace;
}

}  // namespace

void prepare_planning(const std::string& device, const std::string& name, int64_t capability,
                      int64_t processors, int64_t shared_memory) {
  const c10::DeviceType type = at::Device(device).type();
  COMPACT_CHECK(type == c10::kCPU || type == c10::kCUDA, "plans are for cpu and cuda, not for ",
                device);
  if (type == c10::kCUDA && !name.empty()) {
    kernels::set_planned_gpu({.name = name,
                              .capability = static_cast<int>(capability),
                              .processors = static_cast<int>(processors),
                              .shared_memory = shared_memory});
  }
  prepare_meta(type);
}

std::tuple<std::string, int64_t, int64_t, int64_t> gpu_figures(const std::string& name) {
  const kernels::Gpu gpu = gpu_card(name).gpu();
  return {gpu.name, gpu.capability, gpu.processors, gpu.shared_memory};
}

std::tuple<std::string, int64_t> planned_gpu_memory() {
  const std::string& name = kernels::planned_gpu().name;
  const GpuCard* const card = find_gpu_card(name);
  return {card ? std::string(card->words) : name, card ? card->memory_bytes() : 0};
}

int64_t planned_bytes() { return live_bytes(at::kMeta); }

StepTrace::StepTrace(int64_t outside, bool operations, bool segments)
    : before_(live_bytes(at::kMeta) - outside) {
  start_trace(c10::kMeta);
  sums_.emplace();
  if (operations) recorder_.emplace();
  if (segments) watching_ = this;
}

StepTrace::~StepTrace() {
  if (watching_ == this) watching_ = nullptr;
}

StepTrace* StepTrace::watching() { return watching_; }

void StepTrace::moment(const std::string& name) {
  const auto found = kPhases.find(name);
  COMPACT_CHECK(found != kPhases.end(), "a step has no moment `", name, "`");
  if (found->second == Phase::kForward) trace_mark(MemoryEventKind::kForwardBegin);
  if (found->second == Phase::kBackward) trace_mark(MemoryEventKind::kForwardEnd);
  trace_moment(found->second);
}

void StepTrace::gradient(const at::Tensor& gradient) { trace_gradient(gradient); }

void StepTrace::stop() {
  sums_.reset();
  if (recorder_) operations_ = recorder_->take();
  recorder_.reset();
  if (watching_ == this) watching_ = nullptr;
  trace_ = stop_trace();
  timeline_ = timeline_of(trace_);
}

std::tuple<int64_t, int64_t, int64_t, int64_t, std::string> StepTrace::peak() const {
  const MemoryPeak& p = timeline_.peak;
  const int64_t library = matrix_library();
  return {before_ + library + p.total, p.gradients, p.saved, library + p.workspace(),
          str(p.moment)};
}

int64_t StepTrace::reserved(const std::vector<c10::intrusive_ptr<StepTrace>>& earlier) const {
  if (meta_device() != c10::kCUDA) return before_ + timeline_.peak.total;
  CachingAllocatorModel allocator;
  allocator.allocate_workspaces(kernels::planned_gpu().capability, /*late=*/true);
  for (const auto& trace : earlier) allocator.replay(trace->trace_);
  allocator.replay_steps(trace_);
  return allocator.most_reserved();
}

StepMemory StepTrace::memory() const {
  StepMemory m;
  m.weights = before_;
  m.gradients = timeline_.gradients;
  m.peak = before_ + timeline_.peak.total;
  m.at_peak = timeline_.peak;
  for (const auto& [moment, bytes] : timeline_of(by_call(trace_)).moments) {
    m.moments.emplace_back(moment, before_ + bytes);
  }
  m.add_matrix_library(matrix_library());
  return m;
}

}  // namespace compact
