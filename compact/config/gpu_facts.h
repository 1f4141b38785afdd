// SPDX-License-Identifier: Apache-2.0
// Requirements of training on an NVIDIA GPU: what this machine and build have, and what is missing.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace compact {

// Whether this program has its CUDA kernels.
bool has_cuda_kernels();

struct GpuFacts {
  std::string driver;      // version of NVIDIA's kernel driver; empty: none is loaded
  std::string torch_cuda;  // CUDA of this build of torch ("13.0"); empty: a build for the CPU
  int devices = 0;         // GPUs that torch sees
  bool kernels = false;    // has_cuda_kernels()
  std::string nvcc;        // path of the compiler of CUDA; empty: none was found
};

// The facts of this machine, program and torch.
GpuFacts gpu_facts();

// Rows (name, value); the last one, `training on`, says which device the program uses without
// --device and, if that is not a GPU, the first obstacle and what to do about it.
std::vector<std::pair<std::string, std::string>> describe_gpu(const GpuFacts& facts);

}  // namespace compact
