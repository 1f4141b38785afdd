// SPDX-License-Identifier: Apache-2.0
// at::parallel_for is a template over OpenMP and silently serial in a file compiled without
// -fopenmp: this is the one file that is compiled with it (cmake/threads.cmake).
#include "compact/codecs/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace compact {

void torch_parallel_for(int64_t n, int64_t grain, kernels::Launch::Body body) {
  grain = std::max<int64_t>(grain, 1);
  const int64_t blocks = n / grain + (n % grain != 0);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    body(begin * grain, std::min(end * grain, n));
  });
}

}  // namespace compact
