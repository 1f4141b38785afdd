// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM as requests that the training loop checks.
#pragma once

namespace compact {

// While one lives, SIGINT and SIGTERM are counted instead of ending the process. The first asks to
// stop after the step, a second after the micro-batch; a third ends the process at once.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;

  static int count();   // signals so far
  static int signal();  // the first one, or 0

 private:
  void (*old_interrupt_)(int);
  void (*old_terminate_)(int);
};

}  // namespace compact
