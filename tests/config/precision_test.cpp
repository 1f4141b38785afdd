// SPDX-License-Identifier: Apache-2.0
#include "compact/config/precision.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace compact {
namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

// LibTorch by itself would take TF32 for convolutions, whatever is set for matrices.
TEST(MatmulPrecision, OnCudaHoldsForMatricesAndConvolutions) {
  const at::Device gpu(at::kCUDA, 0);
  const auto in_force = [](Float32Op op) {
    return at::globalContext().float32Precision(Float32Backend::CUDA, op);
  };
  EXPECT_EQ(set_matmul_precision("highest", gpu).path, "ieee");
  EXPECT_EQ(in_force(Float32Op::MATMUL), Float32Precision::IEEE);
  EXPECT_EQ(in_force(Float32Op::CONV), Float32Precision::IEEE);
  EXPECT_EQ(set_matmul_precision("high", gpu).path, "tf32");
  EXPECT_EQ(in_force(Float32Op::MATMUL), Float32Precision::TF32);
  EXPECT_EQ(in_force(Float32Op::CONV), Float32Precision::TF32);
}

}  // namespace
}  // namespace compact
