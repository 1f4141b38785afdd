// SPDX-License-Identifier: Apache-2.0
// Samples of several lengths in rows of one: best-fit decreasing (Johnson, Demers, Ullman, Garey
// and Graham, "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace compact {

// The numbers of the samples of each row: the longest samples first, each into the row with the
// least room that suffices, or into a new one. Which of several samples of one length comes first
// is drawn from the key. Throws InputError unless every length is from 1 to `capacity`.
std::vector<std::vector<int64_t>> packed_rows(std::span<const int64_t> lengths, int64_t capacity,
                                              uint64_t key);

}  // namespace compact
