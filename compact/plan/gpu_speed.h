// SPDX-License-Identifier: Apache-2.0
// How fast GPUs are, by their names: for plans of a device that nothing is measured on.
#pragma once

#include <span>
#include <string_view>

namespace compact {

// From the makers' data sheets: products without sparsity, sums in f32.
struct GpuSpeed {
  std::string_view name;      // a word of what the driver calls it
  double half_tflops;         // of bf16 and f16
  double float_tflops;        // of f32 without tensor cores; TF32 runs at half of half_tflops
  double terabytes_a_second;  // of its memory
};
std::span<const GpuSpeed> gpu_speeds();

// The first of the table that `name` ("NVIDIA A100-SXM4-80GB") holds as words; an H100 where none
// is.
const GpuSpeed& gpu_speed(std::string_view name);

// What training reaches of the two.
inline constexpr double kReachedProducts = 0.65, kReachedBytes = 0.85;

}  // namespace compact
