// SPDX-License-Identifier: Apache-2.0
// Tensors of the CPU, treated by the kernels of a GPU.
#pragma once

#include "compact/kernels/kernels.h"

namespace compact::kernels {

// While one lives, kernels on tensors of the CPU are those of the CUDA backend, emulated, each run
// at once. What LibTorch does stays on the CPU.
class OnEmulator {
 public:
  OnEmulator();
  ~OnEmulator();
  OnEmulator(const OnEmulator&) = delete;
};

}  // namespace compact::kernels
