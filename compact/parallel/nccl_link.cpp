// SPDX-License-Identifier: Apache-2.0
#include "compact/parallel/nccl_link.h"

#include "compact/base/check.h"

#ifdef COMPACT_NCCL
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#endif

namespace compact {

#ifndef COMPACT_NCCL

bool has_nccl() { return false; }
std::unique_ptr<NcclLink> make_nccl_link(const NcclMeeting&, at::Device) {
  fail("[group] this build has no NCCL");
}

#else

namespace {

using Clock = std::chrono::steady_clock;
// c10's event, so that no second CUDA runtime is linked.
using EventPtr = std::shared_ptr<c10::Event>;
constexpr std::chrono::milliseconds kGlance(200), kPatience(1000);

ncclDataType_t type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kByte:
      return ncclUint8;
    default:
      fail("[group] NCCL takes no ", c10::toString(t.scalar_type()));
  }
}

class NcclWork final : public Pending {
 public:
  NcclWork(at::Tensor tensor, EventPtr done) : tensor_(std::move(tensor)), done_(std::move(done)) {}
  ~NcclWork() override {
    try {
      wait();
    } catch (const std::exception&) {  // wait() would have thrown it
    }
  }
  void wait() override {
    if (const EventPtr done = std::exchange(done_, {})) {
      done->block(c10::cuda::getCurrentCUDAStream(tensor_.device().index()).unwrap());
    }
    tensor_.reset();
  }

 private:
  at::Tensor tensor_;  // kept until the current stream waits for the copy
  EventPtr done_;
};

// Calls do not wait for other ranks. A thread watches operations under way, since one would wait
// for ever for a rank that has ended.
class Link final : public NcclLink {
 public:
  Link(const NcclMeeting& meeting, at::Device device)
      : meeting_(meeting),
        device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
    const c10::DeviceGuard guard(device_);
    ncclUniqueId id = {};
    if (meeting.rank == 0) must(ncclGetUniqueId(&id));
    const std::string shared = meeting.share(std::string(id.internal, sizeof id.internal));
    COMPACT_CHECK(shared.size() == sizeof id.internal, "[group] NCCL's id has ", shared.size(),
                  " bytes");
    std::memcpy(id.internal, shared.data(), shared.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, meeting.size, id, meeting.rank, &config));
    } catch (...) {
      if (comm_) ncclCommAbort(comm_);
      throw;
    }
    watcher_ = std::thread([this] { watch(); });
  }

  ~Link() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    watcher_.join();
    // Aborts what is under way, which may wait for ranks that have ended.
    if (!gone_) ncclCommAbort(comm_);
  }

  PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) override {
    const c10::DeviceGuard guard(device_);
    const std::unique_lock lock(mutex_);
    check_there();
    c10::Event before(c10::kCUDA);
    before.record(c10::cuda::getCurrentCUDAStream(device_.index()).unwrap());
    before.block(stream_.unwrap());
    settle(launch(transfer, t, rank));
    const auto done = std::make_shared<c10::Event>(c10::kCUDA);
    done->record(stream_.unwrap());
    under_way_.emplace_back(done, Clock::now());
    return std::make_unique<NcclWork>(t, done);
  }

  void check() override { check_there(); }

 private:
  ncclResult_t launch(Transfer transfer, const at::Tensor& t, int rank) {
    void* data = t.data_ptr();
    const auto count = static_cast<size_t>(t.numel());
    const ncclDataType_t type = type_of(t);
    switch (transfer) {
      case Transfer::kSum:
        return ncclAllReduce(data, data, count, type, ncclSum, comm_, stream_.stream());
      case Transfer::kSumTo:
        return ncclReduce(data, data, count, type, ncclSum, rank, comm_, stream_.stream());
      case Transfer::kSend:
        return ncclBroadcast(data, data, count, type, rank, comm_, stream_.stream());
      case Transfer::kPass:
        return ncclSend(data, count, type, rank, comm_, stream_.stream());
      case Transfer::kReceive:
        return ncclRecv(data, count, type, rank, comm_, stream_.stream());
    }
    fail("[group] no such transfer");
  }

  static void must(ncclResult_t result) {
    if (result != ncclSuccess) throw GroupError(cat("NCCL: ", ncclGetErrorString(result)));
  }

  // Waits until NCCL has accepted a call.
  void settle(ncclResult_t result) {
    const Clock::time_point end = Clock::now() + meeting_.timeout;
    Clock::time_point asked = Clock::now();
    while (result == ncclInProgress) {
      bool lost = gone_ || Clock::now() > end;
      if (Clock::now() > asked + kPatience) asked = Clock::now(), lost |= meeting_.failed();
      if (lost) {
        throw GroupError("another rank has gone or did not answer: NCCL waits for it");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      must(ncclCommGetAsyncError(comm_, &result));
    }
    must(result);
  }

  void check_there() const {
    if (gone_ && broken_) std::rethrow_exception(broken_);
    if (gone_) throw GroupError("another rank has gone or did not answer: NCCL was stopped");
  }

  // Keeps an error of this rank's device, which the next call throws.
  bool is_lost_or_broken() {
    try {
      return is_lost();
    } catch (const std::exception&) {
      broken_ = std::current_exception();
      return true;
    }
  }

  // Whether the oldest operation under way waits for too long, or for a rank that left.
  bool is_lost() {
    while (!under_way_.empty() && under_way_.front().first->query()) under_way_.pop_front();
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm_, &state);
    if (state != ncclSuccess && state != ncclInProgress) return true;
    if (under_way_.empty()) return false;
    const auto waited = Clock::now() - under_way_.front().second;
    return waited > meeting_.timeout || (waited > kPatience && meeting_.failed());
  }

  void watch() {
    const c10::DeviceGuard guard(device_);
    std::unique_lock lock(mutex_);
    while (!stopped_ && !gone_) {
      wake_.wait_for(lock, kGlance);
      if (stopped_ || !is_lost_or_broken()) continue;
      gone_ = true;
      ncclCommAbort(comm_);  // what waits on the device ends, with undefined results
    }
  }

  const NcclMeeting meeting_;
  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::atomic<bool> gone_ = false;
  std::exception_ptr broken_;  // set before `gone_`
  std::deque<std::pair<EventPtr, Clock::time_point> > under_way_;
  std::thread watcher_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<NcclLink> make_nccl_link(const NcclMeeting& meeting, at::Device device) {
  return std::make_unique<Link>(meeting, device);
}

#endif

}  // namespace compact
