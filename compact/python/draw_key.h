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

// The same, which it stays: the generator is left as it is.
inline uint64_t next_key() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::unique_lock lock(generator.mutex());
  const at::Generator copy = generator.clone();
  lock.unlock();
  return at::check_generator<at::CPUGeneratorImpl>(copy)->random64();
}

}  // namespace compact
