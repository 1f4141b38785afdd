// SPDX-License-Identifier: Apache-2.0
// Writes that a run must not end without: where one fails (the disk is full), somebody may make
// room.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "compact/base/function_ref.h"
#include "compact/report/metrics.h"

namespace compact {

// Calls write() until it succeeds, with a warning that names `what` after the first failure. `wait`
// is asked, with the number of attempts made, before each further one; without it there is one
// every ten seconds for ten minutes, or until a signal comes. Then throws InputError with the
// reason, and how to get what is missing from `checkpoint`, a folder (empty: there is none).
void write_last(Console& console, const std::string& what, FunctionRef<void()> write,
                const std::function<bool(int64_t attempts)>& wait, const std::string& checkpoint);

}  // namespace compact
