// SPDX-License-Identifier: Apache-2.0
// Uses the installed package: every projection of its table, and kernels of every backend.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>

#include "compact/codecs/projection.h"
#include "compact/kernels/kernels.h"

int main() {
  for (const compact::ProjectionInfo* info : compact::projections()) {
    const int64_t n = 344, r = 86;
    const auto p = info->make(n, r, /*key=*/7, at::TensorOptions().dtype(at::kFloat));
    const at::Tensor x = at::ones({3, n});
    const double error = (p->apply(x) - at::mm(x, p->matrix())).abs().max().item<double>();
    std::printf("%s: %.2g\n", info->name.c_str(), error);
    if (!(error < 1e-4)) return 1;
  }
  std::printf("%zu backends\n", compact::kernels::backends().size());
  return compact::kernels::backends().empty();
}
