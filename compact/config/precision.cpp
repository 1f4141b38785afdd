// SPDX-License-Identifier: Apache-2.0
#include "compact/config/precision.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

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

// Error of the current path on a product of a size that is usual in training.
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

// Sets a path and measures its error and speed.
MatmulReport measure(bool onednn) {
  at::NoGradGuard no_grad;
  use_onednn(onednn);
  return {.path = onednn ? "onednn" : "default",
          .error = relative_error(),
          .gflops = product_gflops(at::kFloat)};
}

// f32 products of inner size 512 have an error of some 1e-7, a path through bf16 one of 1e-3.
constexpr double kFloat32Error = 2e-6;

}  // namespace

double product_gflops(at::ScalarType type) {
  at::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(2);
  const at::Tensor x = at::randn({1024, 512}, generator).to(type),
                   y = at::randn({512, 1024}, generator).to(type);
  constexpr double kOperations = 2.0 * 1024 * 512 * 1024;
  double most = 0;
  for (int round = 0; round < 3; ++round) {
    most = std::max(most, kOperations / seconds_of(x, y) * 1e-9);
  }
  return most;
}

MatmulReport set_matmul_precision(std::string_view precision, at::Device device,
                                  std::string_view forced) {
  COMPACT_CHECK(precision == "highest" || precision == "high",
                "matmul_precision must be highest or high, is `", precision, "`");
  const bool high = precision == "high";
  if (device.is_cuda()) {
    // By default convolutions are in TF32.
    for (const Float32Op op : {Float32Op::MATMUL, Float32Op::CONV}) {
      at::globalContext().setFloat32Precision(
          Float32Backend::CUDA, op, high ? Float32Precision::TF32 : Float32Precision::IEEE);
    }
    return {.path = high ? "tf32" : "ieee"};
  }
  if (!at::globalContext().hasMKLDNN()) return measure(false);
  if (!forced.empty()) return measure(forced == "onednn");
  // The choice is by error alone: a run's numbers depend on the path, so it must not follow a
  // measured speed, which is noise on a busy machine. oneDNN is tried first, being faster wherever
  // measured.
  const MatmulReport onednn = measure(true);
  if (onednn.error < kFloat32Error || high) return onednn;
  return measure(false);
}

void set_deterministic(bool on, c10::DeviceType device) {
  const bool strict = on && device == c10::kCUDA;
  // Read once, by cuBLAS; a value of the user's stays.
  if (strict) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicAlgorithms(strict, /*warn_only=*/false);
  context.setDeterministicCuDNN(strict);
}

std::optional<std::string> not_deterministic(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (!of_torch) return std::nullopt;
  const std::string message = of_torch->what_without_backtrace();
  const size_t at = message.find(" does not have a deterministic implementation");
  if (at == message.npos) return std::nullopt;
  return cat("--deterministic: torch has no form of ", message.substr(0, at),
             " that gives the same bits every time on a GPU; leave the flag out, or use a CPU");
}

}  // namespace compact
