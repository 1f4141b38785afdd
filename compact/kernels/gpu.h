// SPDX-License-Identifier: Apache-2.0
// The GPU of this machine, as far as choices and plans depend on it.
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

// What plans are for: the first GPU, to which others of the machine are taken to be alike, or an
// H100 where there is none, until another one is set, for the whole process.
const Gpu& planned_gpu();
void set_planned_gpu(const Gpu& gpu);

// Bytes of shared memory that the CUDA backend's srht takes for a row of n.
constexpr int64_t srht_row_bytes(int64_t n) {
  return (n + n / 16 + 1) * static_cast<int64_t>(sizeof(float));
}

}  // namespace compact::kernels
