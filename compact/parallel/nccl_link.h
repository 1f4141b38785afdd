// SPDX-License-Identifier: Apache-2.0
// Sends CUDA tensors between ranks without the host: by NCCL, in builds for CUDA that found its
// header beside torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "compact/parallel/group.h"

namespace compact {

// The ranks of a new link, and their existing connection, over which they set it up.
struct NcclMeeting {
  int rank = 0, size = 1;
  std::chrono::seconds timeout;  // after which a rank that does not answer counts as gone
  std::function<std::string(const std::string& of_rank_0)> share;
  std::function<bool()> failed;  // whether a rank has reported that it leaves; for any thread
};

class NcclLink {
 public:
  NcclLink() = default;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  virtual ~NcclLink() = default;
  // Runs on a stream of its own, after what was launched on the current one. wait() makes the
  // current stream wait for it, not the host. Throws GroupError where a rank has ended.
  virtual PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) = 0;
  // To be called after waiting for the device: throws GroupError where the link was aborted, and
  // the device's results are undefined.
  virtual void check() = 0;
};

bool has_nccl();
// Called by all ranks at once, each for its own device. Throws GroupError where a rank is missing.
std::unique_ptr<NcclLink> make_nccl_link(const NcclMeeting& meeting, at::Device device);

}  // namespace compact
