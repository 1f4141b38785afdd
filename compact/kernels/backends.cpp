// SPDX-License-Identifier: Apache-2.0
#include "compact/base/check.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {

Launch serial() {
  return {.parallel_for = [](int64_t n, int64_t, Launch::Body body) {
    if (n > 0) body(0, n);
  }};
}

// COMPACT_BACKENDS is the list in CMake, fastest first: X(cuda) X(cpu) X(reference) X(meta).
#define X(name) extern const Backend name##_backend;
COMPACT_BACKENDS
#undef X

std::span<const Backend* const> backends() {
#define X(name) &name##_backend,
  static const Backend* const all[] = {COMPACT_BACKENDS};
#undef X
  return all;
}

const Backend& backend_for(Device device) {
  for (const Backend* b : backends()) {
    if (b->device == device) return *b;
  }
  fail("this build has no kernels for CUDA; configure with the preset `cuda`");
}

}  // namespace compact::kernels
