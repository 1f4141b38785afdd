// SPDX-License-Identifier: Apache-2.0
// Processes that meet at a TCP store and sum by gloo, both torch's own.
#define USE_C10D_GLOO 1
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/function_ref.h"
#include "compact/parallel/group.h"
#include "compact/parallel/nccl_link.h"

namespace compact {
namespace {

constexpr int kTreeTag = 1;
constexpr const char* kFailure = "failure";
constexpr const char* kHeard = "heard";
constexpr std::chrono::seconds kAsk(3);  // how long to wait for the reason of a failure

std::string first_line(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  const std::string text = error ? error->what_without_backtrace() : e.what();
  // After the cause gloo adds advice where to look.
  return text.substr(0, std::min(text.find('\n'), text.find(". This may")));
}

// Turns exceptions into GroupError: gloo's, when a peer dies, are not c10::Error.
void together(FunctionRef<void()> call) {
  try {
    call();
  } catch (const std::exception& e) {
    throw GroupError(cat("another rank has gone or did not answer: ", first_line(e)));
  }
}

class GlooWork final : public Pending {
 public:
  GlooWork(at::Tensor tensor, c10::intrusive_ptr<c10d::Work> work)
      : tensor_(std::move(tensor)), work_(std::move(work)) {}
  ~GlooWork() override {
    try {
      wait();
    } catch (const std::exception&) {  // wait() would have thrown it
    }
  }
  void wait() override {
    if (!work_) return;
    const auto work = std::exchange(work_, {});
    together([&] { work->wait(); });
    tensor_.reset();
  }

 private:
  at::Tensor tensor_;  // keeps the memory that the work uses
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooGroup final : public Group {
 public:
  GlooGroup(const Place& place, std::chrono::seconds timeout)
      : Group(place),
        timeout_(timeout),
        hosts_(!place.hosted && place.rank == 0),
        store_(store_of(place, timeout)) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device_of(place));
    together([&] {
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, place.rank, place.size, options);
    });
  }

  bool leave(const Failure& failure, std::chrono::seconds patience) noexcept override {
    try {
      const std::string text = cat(failure.rank, " ", failure.code, " ", failure.message);
      const bool first = store_->compareSet(kFailure, "", text) == text;
      nccl_.reset();
      gloo_.reset();  // wakes ranks that wait for this one; they ask the store
      if (first && hosts_) wait_until_heard(patience);
      return first;
    } catch (const std::exception&) {
      return true;  // the store has gone, so no other rank can report
    }
  }

  std::optional<Failure> failure() noexcept override {
    try {
      store_->wait({kFailure}, kAsk);
      const std::vector<uint8_t> bytes = store_->get(kFailure);
      std::istringstream in(std::string(bytes.begin(), bytes.end()));
      Failure f;
      in >> f.rank >> f.code;
      if (!in || f.code == 0) f.code = 1;
      in.get();
      std::getline(in, f.message, '\0');
      bool answered = true;
      try {
        store_->add(kHeard, 1);
      } catch (const std::exception&) {  // the store ended before it could answer
        answered = false;
      }
      gloo_.reset();
      if (hosts_ && answered) wait_until_heard(kAsk);
      return f;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  bool lead(FunctionRef<void()> work) override {
    const std::string key = cat("led", ++led_);
    if (!leads()) return followed(key);
    try {
      work();
    } catch (...) {
      together([&] { store_->set(key, "failed"); });
      throw;
    }
    together([&] { store_->set(key, "done"); });
    return true;
  }

  void check() override {
    if (nccl_) nccl_->check();
  }

 protected:
  PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) override {
    if (t.is_cuda() && has_nccl()) {
      if (!nccl_) meet_on_gpus(t.device());
      return nccl_->start(transfer, t, rank);
    }
    c10::intrusive_ptr<c10d::Work> work;
    COMPACT_CHECK(!t.is_cuda() || transfer < Transfer::kPass,
                  "[group] a tree of sums on GPUs needs NCCL, which this build lacks");
    // kPass and kReceive, the steps of a tree, have no future to be timed by.
    const bool step = transfer == Transfer::kPass || transfer == Transfer::kReceive;
    if (!step) clock()->begin();
    together([&] { work = launch(transfer, t, rank); });
    if (!step)
      work->getFuture()->addCallback([clock = clock()](c10::ivalue::Future&) { clock->end(); });
    return std::make_unique<GlooWork>(t, std::move(work));
  }

  // A long timeout is safe: a rank that dies closes its connection, which is an error at once.
  void sum_patiently(const at::Tensor& t) override {
    together([&] {
      std::vector<at::Tensor> list{at::from_blob(t.data_ptr(), t.sizes(), t.options())};
      c10d::AllreduceOptions options;
      options.timeout = kWriting;
      gloo_->allreduce(list, options)->wait();
    });
  }

 private:
  c10::intrusive_ptr<c10d::Work> launch(Transfer transfer, const at::Tensor& t, int rank) {
    // Not owned: gloo's work outlives its end for a moment, when the memory is the caller's.
    std::vector<at::Tensor> list{at::from_blob(t.data_ptr(), t.sizes(), t.options())};
    switch (transfer) {
      case Transfer::kSum:
        return gloo_->allreduce(list);
      case Transfer::kSumTo: {
        c10d::ReduceOptions options;
        options.rootRank = rank;
        return gloo_->reduce(list, options);
      }
      case Transfer::kSend: {
        c10d::BroadcastOptions options;
        options.rootRank = rank;
        return gloo_->broadcast(list, options);
      }
      case Transfer::kPass:
        return gloo_->send(list, rank, kTreeTag);
      case Transfer::kReceive:
        return gloo_->recv(list, rank, kTreeTag);
    }
    fail("[group] no such transfer");
  }

  // Called by all ranks at once, for their first tensor on a GPU.
  void meet_on_gpus(at::Device device) {
    const NcclMeeting meeting{.rank = this->rank(),
                              .size = size(),
                              .timeout = timeout_,
                              .share = [this](const std::string& id) { return broadcast(id); },
                              .failed =
                                  [store = store_] {
                                    try {
                                      return store->check({kFailure});
                                    } catch (const std::exception&) {
                                      return true;
                                    }
                                  }};
    nccl_ = make_nccl_link(meeting, device);
  }

  bool followed(const std::string& key) {
    bool done = false;
    together([&] {
      while (!store_->check({key})) {
        COMPACT_CHECK(!store_->check({kFailure}), "rank 0 did not come to it");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      done = store_->get_to_str(key) == "done";
    });
    return done;
  }

  // Until all other ranks have read the failure, since the store ends with this process.
  void wait_until_heard(std::chrono::seconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (store_->add(kHeard, 0) < size() - 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  static c10::intrusive_ptr<c10d::Store> store_of(const Place& place,
                                                  std::chrono::seconds timeout) {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, 3);  // errors are thrown as well
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(place.port);
    options.isServer = !place.hosted && place.rank == 0;
    options.numWorkers = static_cast<size_t>(place.size);
    options.waitWorkers = !place.hosted;
    options.timeout = timeout;
    try {
      return c10::make_intrusive<c10d::PrefixStore>(
          cat("compact", place.restarts),
          c10::make_intrusive<c10d::TCPStore>(place.address, options));
    } catch (const std::exception& e) {
      fail("rank ", place.rank, " of ", place.size, ": the ranks do not meet at ", place.address,
           ":", place.port, " (MASTER_ADDR, MASTER_PORT): ", first_line(e));
    }
  }

  static std::shared_ptr<gloo::transport::Device> device_of(const Place& place) {
    if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
      return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
    }
    const bool one_machine = place.address == "localhost" || place.address.starts_with("127.");
    return one_machine ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                       : c10d::ProcessGroupGloo::createDefaultDevice();
  }

  std::chrono::seconds timeout_;
  bool hosts_;  // the store
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::unique_ptr<NcclLink> nccl_;
  int64_t led_ = 0;
};

}  // namespace

std::unique_ptr<Group> join_group(const Place& place, std::chrono::seconds timeout) {
  if (place.size == 1) return single_group();
  // Writing to a connection whose other end has died is an error, as under Python, and does not end
  // the process. A handler that is already installed stays.
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  return std::make_unique<GlooGroup>(place, timeout);
}

}  // namespace compact
