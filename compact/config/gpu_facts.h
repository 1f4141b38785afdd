// SPDX-License-Identifier: Apache-2.0
// What this machine and build have of what training on an NVIDIA GPU needs, and what is missing.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace compact {

// Whether this program has its CUDA kernels.
bool has_cuda_kernels();

struct GpuFacts {
  std::string driver;      // version of NVIDIA's kernel driver; empty: none is loaded
  std::string torch_cuda;  // CUDA of this build of torch ("13.0"); empty: it is one for the CPU
  int devices = 0;         // GPUs that torch sees
  bool kernels = false;    // has_cuda_kernels()
  std::string nvcc;        // path of the compiler of CUDA; empty: none was found
};

// What this machine, program and torch have.
GpuFacts gpu_facts();

// Rows (name, what is there) and a last one, `training on`, that says where the program trains
// without --device and, where a GPU is of no use yet, the first thing to do about it.
std::vector<std::pair<std::string, std::string>> describe_gpu(const GpuFacts& facts);

}  // namespace compact
