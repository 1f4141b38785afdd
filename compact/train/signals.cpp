// SPDX-License-Identifier: Apache-2.0
#include "compact/train/signals.h"

#include <unistd.h>

#include <csignal>

namespace compact {
namespace {

volatile std::sig_atomic_t g_count = 0, g_signal = 0;

void on_signal(int signal) {
  if (g_count == 0) g_signal = signal;
  g_count = g_count + 1;
  if (g_count > 2) _exit(128 + signal);
}

}  // namespace

SignalScope::SignalScope() {
  g_count = 0;
  g_signal = 0;
  old_interrupt_ = std::signal(SIGINT, on_signal);
  old_terminate_ = std::signal(SIGTERM, on_signal);
}

SignalScope::~SignalScope() {
  std::signal(SIGINT, old_interrupt_);
  std::signal(SIGTERM, old_terminate_);
}

int SignalScope::count() { return g_count; }
int SignalScope::signal() { return g_signal; }

}  // namespace compact
