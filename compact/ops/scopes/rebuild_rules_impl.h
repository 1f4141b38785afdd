// SPDX-License-Identifier: Apache-2.0
// Which operations of ATen may run a second time: cheap ones that give the same bits again.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace compact {

struct OpRule {
  c10::OperatorHandle op;
  // It is the operation itself, not a composite of others that are watched by themselves.
  bool leaf = false;
  bool cast_on_cpu = false, cast_on_cuda = false;  // there autocast makes it a composite
  bool again = false;                    // may run again
  bool writes = false;                   // any of its arguments
  c10::SmallVector<bool, 8> written;     // by argument
  bool updates_statistics = false;       // as native_batch_norm does, without saying so
  static constexpr size_t kMean = 3, kVariance = 4, kTraining = 5;  // then, of its arguments
};

// Whether autocast of this thread runs the operation, with other arguments, inside of itself.
bool is_cast(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments);

// Null where the function has no schema: Python's own autograd functions.
const OpRule* rule_of(const at::RecordFunction& f);

}  // namespace compact
