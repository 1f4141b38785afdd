// SPDX-License-Identifier: Apache-2.0
// The role of meta tensors: they stand for tensors of the device that a plan is for, or for tensors
// in host memory that are offloaded from it.
#pragma once

#include <ATen/core/Tensor.h>

namespace compact {

// Makes meta tensors stand for this type of device (CPU at first): they take its kernels' paths,
// and so their memory. For the whole process.
void set_meta_device(c10::DeviceType type);
c10::DeviceType meta_device();

// The type of a device; for the meta device that of the device it stands for.
inline c10::DeviceType device_type_of(c10::Device device) {
  return device.is_meta() ? meta_device() : device.type();
}
// The same for the device of a tensor.
inline c10::DeviceType device_type_of(const at::Tensor& t) { return device_type_of(t.device()); }

// A tensor on the CPU of the same shape and type as a meta tensor, filled with 0.01; undefined for
// an undefined one.
at::Tensor numbers_like(const at::Tensor& t);

// While it lives, meta tensors that this thread makes stand for host memory, which is counted
// separately: see peak_host_bytes in ops/memory/memory.h.
class MetaOnHost {
 public:
  MetaOnHost();
  ~MetaOnHost();
  MetaOnHost(const MetaOnHost&) = delete;
  MetaOnHost& operator=(const MetaOnHost&) = delete;
  static bool active();

 private:
  bool before_;
};

}  // namespace compact
