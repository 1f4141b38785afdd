// SPDX-License-Identifier: Apache-2.0
#include "compact/train/last_writes.h"

#include <chrono>
#include <thread>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/train/signals.h"

namespace compact {
namespace {

constexpr int64_t kAttempts = 60;

// Ten seconds, or less where a signal comes; whether it is worth another attempt.
bool wait_for_room(int64_t attempts) {
  const int before = SignalScope::count();
  for (int i = 0; i < 100 && SignalScope::count() == before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return attempts < kAttempts && SignalScope::count() == before;
}

}  // namespace

void write_last(Console& console, const std::string& what, FunctionRef<void()> write,
                const std::function<bool(int64_t attempts)>& wait, const std::string& checkpoint) {
  for (int64_t attempts = 1;; ++attempts) {
    try {
      return write();
    } catch (const InputError& e) {
      if (attempts == 1) {
        console.line(cat("warning: ", what, " waits until it can be written: ", e.what()));
      }
      if (wait ? wait(attempts) : wait_for_room(attempts)) continue;
      fail(e.what(), "; ", what, " of the finished run is not written: make room, then ",
           checkpoint.empty() ? "train again, with --save_steps"
                              : "go on with --resume_from_checkpoint " + checkpoint);
    }
  }
}

}  // namespace compact
