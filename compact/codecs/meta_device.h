// SPDX-License-Identifier: Apache-2.0
// What meta tensors stand for: tensors of a device that a plan is for, or, on a GPU's behalf, of
// the host's memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace compact {

// Meta tensors are treated as those of this type of device (CPU at first): its kernels, and so the
// memory that they take. For the whole process.
void set_meta_device(c10::DeviceType type);
c10::DeviceType meta_device();

// The type of a device or, of the meta device, of the one that it stands for.
inline c10::DeviceType device_type_of(c10::Device device) {
  return device.is_meta() ? meta_device() : device.type();
}
// The same of the device that a tensor is on.
inline c10::DeviceType device_type_of(const at::Tensor& t) { return device_type_of(t.device()); }

// A tensor on the CPU, all 0.01 (as far as its type goes), in the place of one on the meta device;
// undefined in the place of an undefined one.
at::Tensor numbers_like(const at::Tensor& t);

// While one lives, the meta tensors that this thread makes stand for host memory, which is counted
// by itself: see peak_host_bytes in ops/memory/memory.h.
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
