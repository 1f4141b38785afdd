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

// This process ends because another one said why it does, with the same code and without a word.
struct LeftByAnother : std::runtime_error {
  explicit LeftByAnother(const Failure& failure);
  Failure failure;
};
// Of all processes the one that says it: "rank 1: ...".
struct RankError : std::runtime_error {
  RankError(int rank, const ErrorText& text);
  ExitCode code;
};

// What `work` returns. Where it throws and there are other processes, they hear of it and end, too,
// with one message and one exit code: throws RankError in the process that was first, LeftByAnother
// in the others.
int together(Group& group, const std::function<int()>& work);

}  // namespace compact
