// SPDX-License-Identifier: Apache-2.0
// Errors as the program says them: one line and an exit code; and of several processes once.
#pragma once

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include "compact/config/exit_codes.h"
#include "compact/parallel/group.h"

namespace compact {

struct ErrorText {
  std::string message;
  ExitCode code;
};
ErrorText text_of(const std::exception& error);

// This process ends because another one has reported a failure; it takes that exit code and prints
// nothing.
struct LeftByAnother : std::runtime_error {
  explicit LeftByAnother(const Failure& failure);
  Failure failure;
};
// The error of the one process that reports it for all: "rank 1: ...".
struct RankError : std::runtime_error {
  RankError(int rank, const ErrorText& text);
  ExitCode code;
};

// Returns work(). If it throws in one of several processes, all of them end with one message and
// one exit code: the process that failed first throws RankError, the others LeftByAnother.
int together(Group& group, const std::function<int()>& work);

}  // namespace compact
