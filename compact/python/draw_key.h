// SPDX-License-Identifier: Apache-2.0
// Random keys that torch.manual_seed() makes repeatable.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <mutex>

namespace compact {

// The next number of torch's generator for the CPU.
inline uint64_t draw_key() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace compact
