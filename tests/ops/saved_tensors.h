// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of saved tensors: policies, tensors, and looking into a report.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "compact/base/check.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {

inline const Policy kKeep = Policy::parse("slot * = keep\n", "test");
inline Policy quantized(int bits) {
  return Policy::parse(cat("slot * = quantize:bits=", bits, "\n"), "test");
}

inline at::Tensor normal_tensor(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

inline const SavedTensor* find(const SavedTensorReport& report, const std::string& name) {
  for (const SavedTensor& t : report.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

}  // namespace compact
