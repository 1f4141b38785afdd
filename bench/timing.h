// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: flags, and the best times of works that take turns, so that a busy
// machine disturbs their ratios little.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
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

  // [--threads N] [--seconds S] [--filter TEXT]; nullopt, with a line on stderr, on anything else.
  // Sets torch's threads, and its seed to 1.
  static std::optional<Settings> begin(int argc, char** argv) {
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
      } else {
        std::fprintf(stderr, "usage: %s [--threads N] [--seconds S] [--filter TEXT]\n", argv[0]);
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

// The least seconds of each work.
inline std::vector<double> best_times(const std::vector<Work>& works, const Settings& settings) {
  std::vector<double> best(works.size(), 1e9);
  double spent = 0;
  for (int round = 0; round < 4 || spent < static_cast<double>(works.size()) * settings.seconds;
       ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      const double start = clock_seconds(settings.threads == 1);
      works[i]();
      const double t = clock_seconds(settings.threads == 1) - start;
      best[i] = std::min(best[i], t);
      spent += t;
    }
  }
  return best;
}

// Copies bytes by memcpy, on all threads of the launch.
class Copy {
 public:
  explicit Copy(int64_t bytes) : from_(static_cast<size_t>(bytes), 1), to_(from_.size()) {}
  void run(const compact::kernels::Launch& launch, int64_t threads) {
    const auto bytes = static_cast<int64_t>(from_.size());
    launch.parallel_for(bytes, (bytes + threads - 1) / threads, [&](int64_t begin, int64_t end) {
      std::memcpy(to_.data() + begin, from_.data() + begin, static_cast<size_t>(end - begin));
    });
  }

 private:
  std::vector<char> from_, to_;
};
