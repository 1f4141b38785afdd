// SPDX-License-Identifier: Apache-2.0
// Sizes of maps [batch, channels, height, width] without their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace compact {

// A tensor of no bytes that keeps the sizes of a map whose values backward does not read.
at::Tensor size_note(const at::Tensor& map);

// The sizes that such a note keeps, with the batch of `gy`.
std::vector<int64_t> noted_sizes(const at::Tensor& note, const at::Tensor& gy);

// A map of these sizes, channels innermost, not filled.
at::Tensor empty_map(at::IntArrayRef sizes, const at::Tensor& like);

// The same without memory: for operations that read only their input's sizes, not its values.
at::Tensor sizes_only(at::IntArrayRef sizes, const at::Tensor& like);

}  // namespace compact
