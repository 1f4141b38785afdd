// SPDX-License-Identifier: Apache-2.0
// A table of GPUs by their names: for plans of one that nothing is measured on, or that is not
// here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "compact/kernels/gpu.h"

namespace compact {

// Bytes of a GPU's memory that no tensor gets: the driver's own part, and a process's context with
// the kernels of its libraries. 0.4 to 0.6 GiB each as people report it, not measured here.
inline constexpr int64_t kDriverBytes = int64_t{1} << 30;

// From the makers' data sheets: products without sparsity, sums in f32.
struct GpuCard {
  std::string_view name;         // in short, as --gpu takes it
  std::string_view words;        // of the driver's name for it
  double half_tflops;            // of bf16 and f16; TF32 runs at half of it
  double float_tflops;           // of f32 without tensor cores
  double terabytes_a_second;     // of its memory
  int mebibytes;                 // of its memory, as the driver counts it
  int capability;                // 10 * major + minor
  int processors;                // streaming multiprocessors
  double host_gigabytes = 31.5;  // a second from or to the host: PCIe 4.0 x16, one direction

  double tf32_tflops() const { return half_tflops / 2; }
  // Bytes for tensors: without kDriverBytes.
  int64_t memory_bytes() const { return (int64_t{mebibytes} << 20) - kDriverBytes; }
  // As plans take it in place of the one of this machine (kernels::set_planned_gpu).
  kernels::Gpu gpu() const;
  std::string summary() const;
};
std::span<const GpuCard> gpu_cards();

// The one of a short name, in any case, or of a driver's name. Throws InputError on another.
const GpuCard& gpu_card(std::string_view name);

// The first whose words the driver's name ("NVIDIA A100-SXM4-80GB") holds; null where there is
// none.
const GpuCard* find_gpu_card(std::string_view driver_name);

// The card of kernels::planned_gpu(), or an H100 where it is not in the table.
const GpuCard& planned_card();

// Which path products in f32 take on it under a --matmul_precision, and what the other would give.
std::string float_products(const GpuCard& card, std::string_view precision);

// Parts of its products and bytes that training reaches: assumed, not measured on a GPU.
inline constexpr double kReachedProducts = 0.65, kReachedBytes = 0.85;

}  // namespace compact
