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
  bool again = false;                              // may run again
  bool writes = false;                             // any of its arguments
  c10::SmallVector<bool, 8> written;               // by argument
  bool resizes = false;                            // what it writes may get another size first
  // Running statistics that it writes without saying so: a mean, then a variance.
  struct Statistics {
    const char* name;
    size_t mean;   // its argument
    int training;  // the argument that says whether they are written; -1: always
  };
  const Statistics* statistics = nullptr;
};

// Whether autocast of this thread runs the operation, with other arguments, inside of itself.
bool is_cast(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments);

// Null where the function has no schema: Python's own autograd functions.
const OpRule* rule_of(const at::RecordFunction& f);

}  // namespace compact
