// SPDX-License-Identifier: Apache-2.0
// Helpers of the benchmarks: flags, and the best times of works that take turns, so that a busy
// machine disturbs their ratios little.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compact/base/text.h"
#include "compact/kernels/kernels.h"

using Work = std::function<void()>;

struct Settings {
  int64_t threads = 1;
  double seconds = 0.3;
  std::string filter;
  c10::DeviceType device = c10::kCPU;
  std::string json;  // a file for the figures, or empty

  // [--threads N] [--seconds S] [--filter TEXT] and, where a benchmark knows devices, [--device
  // cpu|cuda] [--json FILE]; nullopt, with a line on stderr, on anything else. Sets torch's
  // threads, and its seed to 1.
  static std::optional<Settings> begin(int argc, char** argv, bool knows_devices = false) {
    Settings settings;
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
      const std::optional<double> number = compact::parse_number(value);
      if (name == "--threads" && number && *number >= 1) {
        settings.threads = static_cast<int64_t>(*number);
      } else if (name == "--seconds" && number) {
        settings.seconds = *number;
      } else if (name == "--filter" && i + 1 < argc) {
        settings.filter = value;
      } else if (knows_devices && name == "--device" && (value == "cpu" || value == "cuda")) {
        settings.device = value == "cuda" ? c10::kCUDA : c10::kCPU;
      } else if (knows_devices && name == "--json" && !value.empty()) {
        settings.json = value;
      } else {
        std::fprintf(stderr,
                     "%s: no flag with a value like `%s %s`; usage: %s [--threads N] "
                     "[--seconds S] [--filter TEXT]%s\n",
                     argv[0], name.c_str(), value.c_str(), argv[0],
                     knows_devices ? " [--device cpu|cuda] [--json FILE]" : "");
        return std::nullopt;
      }
    }
    at::set_num_threads(static_cast<int>(settings.threads));
    at::manual_seed(1);
    return settings;
  }
};

// One thread: its own processor time, which others on the machine disturb less.
inline double clock_seconds(bool one_thread) {
  timespec t{};
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Seconds of one of `calls` calls. On a GPU the time between two events on the current stream, so
// that what the host takes to launch is hidden where a call takes longer than its launches.
inline double seconds_of(const Work& work, int64_t calls, const Settings& settings) {
  const auto run = [&] {
    for (int64_t i = 0; i < calls; ++i) work();
  };
  const auto share = static_cast<double>(calls);
  if (settings.device == c10::kCPU) {
    const double start = clock_seconds(settings.threads == 1);
    run();
    return (clock_seconds(settings.threads == 1) - start) / share;
  }
  const c10::impl::VirtualGuardImpl device(settings.device);
  const c10::Stream stream = device.getStream(device.getDevice());
  c10::Event begin(settings.device, c10::EventFlag::BACKEND_DEFAULT);  // with their times
  c10::Event end(settings.device, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end) * 1e-3 / share;
}

// How many calls of each work are timed together: one on a CPU, on a GPU as many as take 2 ms.
inline std::vector<int64_t> calls_together(const std::vector<Work>& works,
                                           const Settings& settings) {
  std::vector<int64_t> calls(works.size(), 1);
  for (size_t i = 0; i < works.size() && settings.device != c10::kCPU; ++i) {
    seconds_of(works[i], 1, settings);  // warms up
    const double once = std::max(seconds_of(works[i], 1, settings), 1e-6);
    calls[i] = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(2e-3 / once)), 1, 200);
  }
  return calls;
}

// The least seconds of each work.
inline std::vector<double> best_times(const std::vector<Work>& works, const Settings& settings) {
  const std::vector<int64_t> calls = calls_together(works, settings);
  std::vector<double> best(works.size(), 1e9);
  double spent = 0;
  for (int round = 0; round < 4 || spent < static_cast<double>(works.size()) * settings.seconds;
       ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      const double t = seconds_of(works[i], calls[i], settings);
      best[i] = std::min(best[i], t);
      spent += t * static_cast<double>(calls[i]);
    }
  }
  return best;
}

// Copies bytes: by memcpy on all threads of the launch, or on a GPU from its memory to its memory.
class Copy {
 public:
  explicit Copy(int64_t bytes, c10::DeviceType device = c10::kCPU)
      : from_(at::ones({bytes}, at::device(device).dtype(at::kByte))), to_(from_.clone()) {}
  void run(const compact::kernels::Launch& launch, int64_t threads) {
    if (!from_.is_cpu()) {
      to_.copy_(from_);
      return;
    }
    const int64_t bytes = from_.numel();
    auto* to = static_cast<char*>(to_.data_ptr());
    const auto* from = static_cast<const char*>(from_.const_data_ptr());
    launch.parallel_for(bytes, (bytes + threads - 1) / threads, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  }

 private:
  at::Tensor from_, to_;
};
