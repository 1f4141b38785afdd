// SPDX-License-Identifier: Apache-2.0
// Exit codes of the program, and the exceptions that lead to them.
#pragma once

#include <stdexcept>

namespace compact {

enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,
  kExitInput = 2,        // InputError
  kExitNonFinite = 3,    // NonFiniteError
  kExitBudget = 4,       // BudgetError, OutOfMemory
  kExitInterrupt = 130,  // SIGINT: the step was finished and saved
  kExitTerminate = 143,  // SIGTERM: the same
};

// A loss or gradient that is not finite; thrown before the update.
struct NonFiniteError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace compact
