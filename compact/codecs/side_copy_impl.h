// SPDX-License-Identifier: Apache-2.0
// Copies between a device and the host while the device goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <optional>

namespace compact {

// One copy on the side stream of its device, after all work that the current stream has so far. It
// holds the device memory that it reads or writes. On the meta device, which stands for a GPU, the
// copy is made at once and holds its memory as long. May be used by many threads.
class SideCopy {
 public:
  // `of_device`: the tensor of the device, allocated on its current stream.
  explicit SideCopy(at::Tensor of_device);
  // Without a wait() the memory is still not reused before the copy is done.
  ~SideCopy();
  SideCopy(const SideCopy&) = delete;
  SideCopy& operator=(const SideCopy&) = delete;

  // From the tensor of the device into pinned memory, or from there. Once.
  void to_host(const at::Tensor& host);
  void from_host(const at::Tensor& host);
  // Makes all later work of the tensor's own stream and of the current one run after the copy, and
  // releases the tensor. A second call is for the current stream only.
  void wait();

 private:
  struct Streams {
    c10::Stream home, side;
    c10::Event there;
  };
  void run(const at::Tensor& to, const at::Tensor& from);

  std::mutex mutex_;
  at::Tensor tensor_;
  at::Device device_;
  std::optional<Streams> streams_;  // none on the meta device
};

}  // namespace compact
