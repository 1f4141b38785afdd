// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/launch.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/threads.h"
#ifdef COMPACT_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace compact {

kernels::Type type_of(at::ScalarType type) {
  if (type == at::kFloat) return kernels::Type::kFloat32;
  if (type == at::kBFloat16) return kernels::Type::kBFloat16;
  fail("element type must be float32 or bfloat16, is ", c10::toString(type));
}

kernels::Type type_of(const at::Tensor& t) { return type_of(t.scalar_type()); }

void check_like(const char* who, const at::Tensor& x, std::initializer_list<NamedTensor> others) {
  check_like(who, x, others, x.scalar_type());
}

void check_like(const char* who, const at::Tensor& x, std::initializer_list<NamedTensor> others,
                at::ScalarType type) {
  for (const auto& [name, t] : others) {
    COMPACT_CHECK(!t.defined() || (t.scalar_type() == type && t.device() == x.device()), "[", who,
                  "] ", name, " must be ", c10::toString(type), " on ", x.device().str(),
                  " beside activations of ", c10::toString(x.scalar_type()), ", is ",
                  c10::toString(t.scalar_type()), " on ", t.device().str());
  }
}

const kernels::Backend& backend_of(const at::Tensor& t) {
  if (t.is_cpu()) return kernels::backend_for(kernels::Device::kCpu);
  if (t.is_cuda()) return kernels::backend_for(kernels::Device::kCuda);
  if (t.is_meta()) return kernels::backend_for(kernels::Device::kMeta);
  fail("device must be cpu, cuda or meta, is ", t.device().str());
}

float* floats_of(const at::Tensor& t) {
  TORCH_INTERNAL_ASSERT(!t.defined() || t.scalar_type() == at::kFloat);
  return t.defined() ? static_cast<float*>(t.data_ptr()) : nullptr;
}

DeviceLaunch launch_for(const at::Tensor& t) {
  if (t.is_cuda()) {
#ifdef COMPACT_CUDA
    return {{.stream = c10::cuda::getCurrentCUDAStream(t.device().index()).stream()}, t.device()};
#else
    fail("this build has no kernels for CUDA; configure with the preset `cuda`");
#endif
  }
  return {{.parallel_for = torch_parallel_for}, t.device()};
}

}  // namespace compact
