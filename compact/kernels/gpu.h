// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU that the choice of kernels and plans depend on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace compact::kernels {

// The defaults are an H100's.
struct Gpu {
  std::string name = "NVIDIA H100 80GB HBM3";
  int capability = 90;                // 10 * major + minor
  int processors = 132;               // streaming multiprocessors
  int64_t shared_memory = 227 << 10;  // bytes that a block may ask for
};

// GPU number `index`; nullopt where there is none, or this build has no kernels for CUDA.
std::optional<Gpu> find_gpu(int index);

// The GPU that plans are for, in the whole process: the one that was set, else the first of this
// machine (the others are assumed to be like it), else an H100.
const Gpu& planned_gpu();
void set_planned_gpu(const Gpu& gpu);

// Bytes of shared memory that the CUDA backend's srht takes for a row of n.
constexpr int64_t srht_row_bytes(int64_t n) {
  return (n + n / 16 + 1) * static_cast<int64_t>(sizeof(float));
}

}  // namespace compact::kernels
