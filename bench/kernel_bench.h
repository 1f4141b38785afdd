// SPDX-License-Identifier: Apache-2.0
// A table of kernels of one device beside a copy and beside PyTorch's own operations. The three
// take turns, and the best of each counts, so that a busy machine disturbs the ratios little.
#pragma once

#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/codecs/launch.h"

class KernelBench {
 public:
  explicit KernelBench(Settings settings)
      : settings_(std::move(settings)),
        backend_(compact::kernels::backend_for(settings_.device == c10::kCUDA
                                                   ? compact::kernels::Device::kCuda
                                                   : compact::kernels::Device::kCpu)),
        launch_(compact::launch_for(at::empty({1}, on(at::kFloat)))),
        larger_(settings_.device == c10::kCPU ? 1 : 16) {
    std::printf("backend %s, %lld threads\n", backend_.name,
                static_cast<long long>(settings_.threads));
    std::printf("%-28s %9s %8s %8s %10s %9s\n", "kernel", "ms", "GB/s", "copy", "of memcpy",
                "of ATen");
  }

  // The figures as JSON, where --json asks for them.
  void write() const {
    if (settings_.json.empty()) return;
    std::ofstream file(settings_.json);
    file << rows_.dump(1) << std::endl;
    COMPACT_CHECK(file.good(), "--json ", settings_.json, ": cannot be written");
  }

 protected:
  using Tensor = at::Tensor;

  at::TensorOptions on(at::ScalarType type) const {
    return at::device(settings_.device).dtype(type);
  }

  // `bytes`: what the kernel must read and write.
  void measure(const std::string& name, at::ScalarType type, size_t bytes, const Work& ours,
               const Work& theirs) {
    const char* type_name = type == at::kFloat ? "f32" : "bf16";
    const std::string whole = name + " " + type_name;
    if (whole.find(settings_.filter) == std::string::npos) return;
    Copy copy(static_cast<int64_t>(bytes / 2), settings_.device);
    const std::vector<double> best =
        best_times({ours, [&] { copy.run(launch_, settings_.threads); }, theirs}, settings_);
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    std::printf("%-28s %9.3f %8.1f %8.1f %10.2f %9.3f\n", whole.c_str(), best[0] * 1e3,
                gigabytes / best[0], gigabytes / best[1], best[0] / best[1], best[0] / best[2]);
    std::fflush(stdout);
    rows_.push_back({{"kernel", name},
                     {"type", type_name},
                     {"bytes", bytes},
                     {"seconds", best[0]},
                     {"copy_seconds", best[1]},
                     {"aten_seconds", best[2]}});
  }

  const compact::kernels::Backend& backend() const { return backend_; }
  const compact::kernels::Launch& launch() const { return launch_; }
  // The factor of sizes: a GPU gets more than its caches hold.
  int64_t larger() const { return larger_; }

 private:
  Settings settings_;
  const compact::kernels::Backend& backend_;
  compact::kernels::Launch launch_;
  int64_t larger_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};
