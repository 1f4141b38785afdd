// SPDX-License-Identifier: Apache-2.0
// In place of compact/kernels/backends.cpp: the CPU's tensors may be treated by the CUDA kernels.
#include "backends.h"

#include "compact/base/check.h"
#include "emulator.h"

namespace compact::kernels {
namespace {

bool on_emulator = false;

}  // namespace

extern const Backend cuda_backend, cpu_backend, reference_backend, meta_backend;

OnEmulator::OnEmulator() {
  emulated::run_at_once(true);
  on_emulator = true;
}
OnEmulator::~OnEmulator() {
  on_emulator = false;
  emulated::run_at_once(false);
}

Launch serial() {
  return {.parallel_for = [](int64_t n, int64_t, Launch::Body body) {
    if (n > 0) body(0, n);
  }};
}

std::span<const Backend* const> backends() {
  static const Backend* const all[] = {&cpu_backend, &reference_backend, &meta_backend};
  return all;
}

const Backend& backend_for(Device device) {
  if (device == Device::kCpu && on_emulator) return cuda_backend;
  for (const Backend* b : backends()) {
    if (b->device == device) return *b;
  }
  fail("there is no GPU");
}

}  // namespace compact::kernels
