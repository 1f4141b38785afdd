// SPDX-License-Identifier: Apache-2.0
// Sizes of maps [batch, channels, height, width] without their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace compact {

// What a stage keeps of a map of which backward asks no more than its sizes: a tensor of no bytes.
at::Tensor size_note(const at::Tensor& map);

// The sizes that a note tells, with the batch of `gy`.
std::vector<int64_t> noted_sizes(const at::Tensor& note, const at::Tensor& gy);

// A map of these sizes, channels innermost, not filled.
at::Tensor empty_map(at::IntArrayRef sizes, const at::Tensor& like);

// The same whose values nobody may read, in no memory of its own: for operations that ask for no
// more than their input's sizes.
at::Tensor sizes_only(at::IntArrayRef sizes, const at::Tensor& like);

}  // namespace compact
