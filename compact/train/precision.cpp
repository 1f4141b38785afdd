// SPDX-License-Identifier: Apache-2.0
#include "compact/train/precision.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "compact/base/check.h"

namespace compact {
namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

void use_onednn(bool on) {
  at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL,
                                          on ? Float32Precision::BF16 : Float32Precision::IEEE);
}

// Error of the path in force on a product of a size that training has.
double relative_error() {
  const auto generator = at::detail::createCPUGenerator(1);  // leaves the default one alone
  const at::Tensor a = at::randn({384, 512}, generator), b = at::randn({512, 768}, generator);
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  return ((a.mm(b).to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

double seconds_of(const at::Tensor& x, const at::Tensor& y) {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor z = x.mm(y);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Errors and speeds of the paths (true: oneDNN); timed in turn, so that a busy machine slows
// both alike. Leaves the last one in force.
std::vector<MatmulReport> measure(std::vector<bool> paths) {
  at::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(2);
  const at::Tensor x = at::randn({1024, 512}, generator), y = at::randn({512, 1024}, generator);
  constexpr double kOperations = 2.0 * 1024 * 512 * 1024;
  std::vector<MatmulReport> reports(paths.size());
  for (int round = 0; round < 6; ++round) {
    for (size_t i = 0; i < paths.size(); ++i) {
      use_onednn(paths[i]);
      MatmulReport& r = reports[i];
      if (round == 0) r.path = paths[i] ? "onednn" : "default", r.error = relative_error();
      r.gflops = std::max(r.gflops, kOperations / seconds_of(x, y) * 1e-9);
    }
  }
  return reports;
}

// f32 products of length 512 err by some 1e-7; a path through bf16 errs by 1e-3.
constexpr double kFloat32Error = 2e-6;

}  // namespace

MatmulReport set_matmul_precision(std::string_view precision, at::Device device,
                                  std::string_view forced) {
  COMPACT_CHECK(precision == "highest" || precision == "high",
                "matmul_precision must be highest or high, is `", precision, "`");
  const bool high = precision == "high";
  if (device.is_cuda()) {
    at::globalContext().setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL,
                                            high ? Float32Precision::TF32 : Float32Precision::IEEE);
    return {.path = high ? "tf32" : "ieee"};
  }
  if (!at::globalContext().hasMKLDNN()) return measure({false})[0];
  if (!forced.empty()) return measure({forced == "onednn"})[0];
  const std::vector<MatmulReport> both = measure({false, true});
  const MatmulReport &plain = both[0], &onednn = both[1];
  // A run's numbers depend on the path, so the choice must not follow noise: only a default that is
  // clearly faster is taken.
  const bool exact = onednn.error < kFloat32Error;
  if ((exact || high) && onednn.gflops > 0.6 * plain.gflops) return onednn;
  use_onednn(false);
  return plain;
}

}  // namespace compact
