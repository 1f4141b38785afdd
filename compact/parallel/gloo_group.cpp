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

namespace compact {
namespace {

constexpr int kTreeTag = 1;
constexpr const char* kFailure = "failure";
constexpr const char* kHeard = "heard";
constexpr std::chrono::seconds kAsk(3);  // how long a failure is asked for

std::string first_line(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  const std::string text = error ? error->what_without_backtrace() : e.what();
  return text.substr(0, text.find('\n'));
}

// A peer that dies is an exception of gloo, which is no c10::Error.
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
    } catch (const std::exception&) {  // who waits hears of it
    }
  }
  void wait() override {
    if (!work_) return;
    const auto work = std::exchange(work_, {});
    together([&] { work->wait(); });
    tensor_.reset();
  }

 private:
  at::Tensor tensor_;  // whose memory the work reads and writes
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooGroup final : public Group {
 public:
  GlooGroup(const Place& place, std::chrono::seconds timeout)
      : Group(place), hosts_(!place.hosted && place.rank == 0), store_(store_of(place, timeout)) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device_of(place));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, place.rank, place.size, options);
  }

  bool leave(const Failure& failure, std::chrono::seconds patience) noexcept override {
    try {
      const std::string text = cat(failure.rank, " ", failure.code, " ", failure.message);
      const bool first = store_->compareSet(kFailure, "", text) == text;
      gloo_.reset();  // who waits for this rank wakes up, and asks the store
      if (first && hosts_) wait_until_heard(patience);
      return first;
    } catch (const std::exception&) {
      return true;  // the store has gone, and with it who else could say it
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
      store_->add(kHeard, 1);
      gloo_.reset();
      if (hosts_) wait_until_heard(kAsk);
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

 protected:
  PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) override {
    c10::intrusive_ptr<c10d::Work> work;
    clock()->begin();
    together([&] {
      // Works live for a moment after they are done; the memory is the caller's from then on.
      std::vector<at::Tensor> list{at::from_blob(t.data_ptr(), t.sizes(), t.options())};
      if (transfer == Transfer::kSum) {
        work = gloo_->allreduce(list);
      } else if (transfer == Transfer::kSumTo) {
        c10d::ReduceOptions options;
        options.rootRank = rank;
        work = gloo_->reduce(list, options);
      } else {
        c10d::BroadcastOptions options;
        options.rootRank = rank;
        work = gloo_->broadcast(list, options);
      }
    });
    work->getFuture()->addCallback([clock = clock()](c10::ivalue::Future&) { clock->end(); });
    return std::make_unique<GlooWork>(t, std::move(work));
  }

  void pass(const at::Tensor& t, int to) override {
    together([&] {
      std::vector<at::Tensor> list{t};
      gloo_->send(list, to, kTreeTag)->wait();
    });
  }
  void receive(const at::Tensor& t, int from) override {
    together([&] {
      std::vector<at::Tensor> list{t};
      gloo_->recv(list, from, kTreeTag)->wait();
    });
  }

 private:
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

  // By all but the first to leave: the store ends with this process.
  void wait_until_heard(std::chrono::seconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (store_->add(kHeard, 0) < size() - 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  static c10::intrusive_ptr<c10d::Store> store_of(const Place& place,
                                                  std::chrono::seconds timeout) {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, 3);  // what fails is thrown, too
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

  bool hosts_;  // the store
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int64_t led_ = 0;
};

}  // namespace

std::unique_ptr<Group> join_group(const Place& place, std::chrono::seconds timeout) {
  if (place.size == 1) return single_group();
  // A connection whose other end has died is an error, as under Python, and not the end of the
  // process; whoever handles the signal goes on doing so.
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  return std::make_unique<GlooGroup>(place, timeout);
}

}  // namespace compact
