// SPDX-License-Identifier: Apache-2.0
// From ATen tensors to kernels: which element type, which backend, which threads or stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <initializer_list>

#include "compact/kernels/kernels.h"

namespace compact {

// The kernels' name of an element type. Throws InputError on any but float32 and bfloat16.
kernels::Type type_of(const at::Tensor& t);
kernels::Type type_of(at::ScalarType type);

// Kernels take one element type and one device for all of their tensors: those of x, or `type`.
// Throws InputError that names the function and the tensor where a defined one has others.
struct NamedTensor {
  const char* name;
  const at::Tensor& tensor;
};
void check_like(const char* who, const at::Tensor& x, std::initializer_list<NamedTensor> others);
void check_like(const char* who, const at::Tensor& x, std::initializer_list<NamedTensor> others,
                at::ScalarType type);

// The fastest backend for the tensor's device. Throws InputError on a device that has none.
const kernels::Backend& backend_of(const at::Tensor& t);

// The data pointer of an f32 tensor; null for an undefined one, null or invalid on the meta device
// (where at's typed data_ptr throws).
float* floats_of(const at::Tensor& t);

// A launch that makes the device the current one for as long as it lives.
class DeviceLaunch : public kernels::Launch {
 public:
  DeviceLaunch(const kernels::Launch& launch, at::Device device) : kernels::Launch(launch) {
    if (device.has_index() && !device.is_cpu() && !device.is_meta()) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

// CPU: torch's threads (ranges are whole multiples of the grain, the last one excepted). CUDA: the
// current stream of the tensor's device, which becomes the current one. Meta: nothing runs.
DeviceLaunch launch_for(const at::Tensor& t);

}  // namespace compact
