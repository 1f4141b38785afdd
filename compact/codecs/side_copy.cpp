// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <unordered_map>
#include <utility>

#include "compact/codecs/side_copy_impl.h"

namespace compact {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// One stream for each device, of torch's pool. Both directions use it, so that a copy to the host
// ends before the copy back begins.
c10::Stream side_stream(at::Device device) {
  static std::mutex mutex;
  static std::unordered_map<at::Device, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto known = streams.find(device);
  if (known != streams.end()) return known->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.emplace(device, guard.getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

SideCopy::SideCopy(at::Tensor of_device)
    : tensor_(std::move(of_device)), device_(tensor_.device()) {
  if (device_.is_meta()) return;
  streams_ = Streams{current_stream(device_), side_stream(device_), c10::Event(device_.type())};
}

SideCopy::~SideCopy() {
  if (!tensor_.defined() || !streams_) return;
  try {
    tensor_.record_stream(streams_->side);
  } catch (const std::exception&) {
    // Nothing to guard: a device that has failed runs nothing more.
  }
}

void SideCopy::to_host(const at::Tensor& host) { run(host, tensor_); }
void SideCopy::from_host(const at::Tensor& host) { run(tensor_, host); }

void SideCopy::run(const at::Tensor& to, const at::Tensor& from) {
  if (!streams_) {
    to.copy_(from, /*non_blocking=*/true);
    return;
  }
  c10::Event before(device_.type());
  before.record(streams_->home);
  before.block(streams_->side);
  {
    const c10::StreamGuard guard(streams_->side);
    to.copy_(from, /*non_blocking=*/true);
  }
  streams_->there.record(streams_->side);
}

void SideCopy::wait() {
  const std::lock_guard lock(mutex_);
  if (streams_) {
    const c10::Stream now = current_stream(device_);
    streams_->there.block(now);
    if (tensor_.defined() && now != streams_->home) {
      streams_->there.block(streams_->home);
      tensor_.record_stream(now);
    }
  }
  tensor_ = at::Tensor();
}

}  // namespace compact
