// SPDX-License-Identifier: Apache-2.0
// Exact bytes of CPU tensors, without another allocator: torch's own reports to an object in the
// thread's debug information, as to its profiler.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/custom_class.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace compact {

// Counts what this thread, and the backward passes that it starts, allocate and free from start()
// to stop(). Not beside torch.profiler. Freed memory that was there before counts below 0.
class Meter final : public torch::CustomClassHolder {
 public:
  Meter();
  ~Meter() override;
  // Throws std::logic_error where it runs, or another profiler does.
  void start();
  void stop();
  int64_t now() const;
  int64_t peak() const;
  void reset_peak();

  struct Count;

 private:
  std::shared_ptr<Count> count_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace compact
