// SPDX-License-Identifier: Apache-2.0
// The table of a model's saved tensors by kind of slot.
#pragma once

#include <string>
#include <vector>

#include "compact/ops/segments/segment.h"

namespace compact {

// Sums slots that are treated alike into one row: of all layers (layers.*.attn.norm) or of some
// (layers.{0..5}.attn.norm).
std::vector<SlotBytes> by_kind(const std::vector<SlotBytes>& slots);

// Lines: slot, treatment, bytes as stored, bytes if kept; then the sums.
std::string slot_table(const std::vector<SlotBytes>& slots);

// "saved    1.20 GiB for the backward pass, 1.92 GiB if all were kept as it is".
std::string saved_line(const std::vector<SlotBytes>& slots);

int64_t stored_bytes(const std::vector<SlotBytes>& slots);

}  // namespace compact
