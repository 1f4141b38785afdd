// SPDX-License-Identifier: Apache-2.0
// The memory behind a HeldTensor.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/op_tape_impl.h"
#include "compact/ops/scopes/saved_tensor_store.h"

namespace compact {

struct HeldTensor::Memory {
  // Guards all below: another operation that saves the tensor may change them during a read.
  mutable std::mutex mutex;
  Treatment treatment;
  Encoded encoded;   // or, where nothing encodes it,
  at::Tensor plain;  // the tensor, without its history
  uint32_t version = 0;
  std::optional<CopiedFrom> copy;   // what was saved, where that is a copy of `plain`
  std::shared_ptr<SavedNode> node;  // or it is held, or rebuilt, as the tape decided
  int64_t bytes = 0;
  std::shared_ptr<LiveBytes> live;
  Treatment how;         // of the policy, of codes
  CodeRows apart;        // that these codes keep apart
  bool squared = false;  // by an operation
  size_t row = 0;        // of the report: of the operation that saved it first
  // All readers so far are Reads::kNearBeside or kShape: rounded once another reader allows it.
  bool may_round = false;
  ~Memory() {
    if (live) live->add(-bytes);
  }
};

}  // namespace compact
