// SPDX-License-Identifier: Apache-2.0
#include "compact/train/precision.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <chrono>

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

// Error and speed of the path in force, on one product of a size that training has.
MatmulReport measure(std::string path) {
  at::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(1);  // leaves the default one alone
  const at::Tensor a = at::randn({384, 512}, generator), b = at::randn({512, 768}, generator);
  MatmulReport report{.path = std::move(path)};
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  report.error = ((a.mm(b).to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  const at::Tensor x = at::randn({2048, 512}, generator), y = at::randn({512, 1024}, generator);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor z = x.mm(y);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  report.gflops = 2.0 * 2048 * 512 * 1024 / best * 1e-9;
  return report;
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
  if (!at::globalContext().hasMKLDNN()) return measure("default");
  if (!forced.empty()) {
    use_onednn(forced == "onednn");
    return measure(std::string(forced));
  }
  use_onednn(false);
  const MatmulReport plain = measure("default");
  use_onednn(true);
  const MatmulReport onednn = measure("onednn");
  const bool exact = onednn.error < kFloat32Error;
  // Near ties go to oneDNN, so that noise does not change the numbers of a run.
  if ((exact || high) && onednn.gflops > 0.9 * plain.gflops) return onednn;
  use_onednn(false);
  return plain;
}

}  // namespace compact
