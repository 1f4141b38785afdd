// SPDX-License-Identifier: Apache-2.0
// Choosing the library path of matrix products.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace compact {

// The names that set_matmul_precision() accepts.
inline constexpr const char* kMatmulPrecisions[] = {"highest", "high"};

struct MatmulReport {
  std::string path;   // "onednn", "default", "tf32", ...
  double error = 0;   // relative error of an f32 product against f64
  double gflops = 0;  // of that path, f32, in the measurement
};

// Sets the path of f32 products for the process, convolutions on CUDA included. `highest`: true
// f32. On a CPU, oneDNN's path (asked for as bf16, which it computes in f32 where there are no bf16
// matrix units) is measured and kept only if its error is that of f32. `high`: the fastest path
// whatever its rounding (bf16 or TF32 units). `forced` ("onednn", "default") skips the choice, so
// that a resumed run computes as before. Throws InputError on another word.
MatmulReport set_matmul_precision(std::string_view precision, at::Device device,
                                  std::string_view forced = {});

// Billions of operations a second in a product of this type on the CPU, by the current path.
double product_gflops(at::ScalarType type);

// Makes every run give the same bits on this type of device. A CPU's operations do so anyway; on
// CUDA torch takes its deterministic operations, for the whole process, and refuses operations that
// have none. To be called before the first product.
void set_deterministic(bool on, c10::DeviceType device);
// The message for such a refusal; nullopt for other errors.
std::optional<std::string> not_deterministic(const std::exception& error);

}  // namespace compact
