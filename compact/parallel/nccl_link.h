// SPDX-License-Identifier: Apache-2.0
// What carries tensors of CUDA between ranks without the host: NCCL, in builds for CUDA that found
// its header beside torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "compact/parallel/group.h"

namespace compact {

// What a link needs of the ranks that meet already.
struct NcclMeeting {
  int rank = 0, size = 1;
  std::chrono::seconds timeout;  // after which a rank that does not answer counts as gone
  std::function<std::string(const std::string& of_rank_0)> share;
  std::function<bool()> failed;  // whether a rank has said that it leaves; of any thread
};

class NcclLink {
 public:
  NcclLink() = default;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  virtual ~NcclLink() = default;
  // Runs on a stream of its own, after what was launched on the current one. wait() makes the
  // current stream wait for it, not the host. Throws GroupError where a rank has gone since.
  virtual PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) = 0;
  // Throws GroupError where it was stopped: what the device has made since is of no meaning. To be
  // asked once that has been waited for.
  virtual void check() = 0;
};

bool has_nccl();
// All ranks at once, each for its own device. Throws GroupError where one does not come.
std::unique_ptr<NcclLink> make_nccl_link(const NcclMeeting& meeting, at::Device device);

}  // namespace compact
