// SPDX-License-Identifier: Apache-2.0
// Memory outside of the device for tensors that live between steps, as weights and an optimizer's
// state: the host's, or files. Kernels and operations of the device read and write it in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace compact {

enum class MemoryPlace : uint8_t { kDevice, kHost, kDisk };
// `offload` or `disk`; empty: the device. Throws InputError on another word.
MemoryPlace memory_place(std::string_view word);
// Whether tensors of a device that are in a place are in other memory than the device's.
bool is_outside(MemoryPlace place, at::Device device);

// Contiguous zeros. On a GPU `offload` is pinned memory that the GPU reads and writes over its bus;
// on a CPU, where the host is the device, ordinary memory. `disk`, on a CPU alone: an unnamed file
// in `folder` that is mapped into memory: the system reads its pages when they are used, and writes
// and drops them when memory is short. Nothing is left of it after the process, and a process that
// is forked from this one does not have it. Throws InputError
// where the folder cannot hold it, or lies in memory itself (tmpfs).
at::Tensor zeros_in(MemoryPlace place, at::IntArrayRef sizes, const at::TensorOptions& options,
                    const std::string& folder);
// A disk lost what was written to memory that lies in its files.
struct DiskError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Throws DiskError, with folder and reason, where the system could not write pages of living
// tensors of zeros_in() to their files: it tells that nowhere else, and what is read from them may
// be of any age. Asks each file by one page. To be called after what is to be kept was read.
void check_disks();
// Has the system begin to read the file that a tensor of zeros_in() lies in.
void read_ahead(const at::Tensor& t);

}  // namespace compact
