// SPDX-License-Identifier: Apache-2.0
// cuda_traffic: sectors that the warps of every CUDA kernel touch beside the least possible, in the
// self-check's cases with shapes of training. A block of the emulator walks over sixteen of their
// rows, as one of 2,048 does over 32,768. Exit code 1 where a kernel touches more than kMost times
// the least.
#include <cstdio>
#include <exception>

#include "compact/kernels/self_check_cases_impl.h"
#include "cuda_runtime.h"
#include "sectors.h"

namespace compact::kernels {
namespace {

constexpr double kMost = 1.15;

class TrafficCount : public Checker {
 public:
  TrafficCount() : Checker(backend_for(Device::kCuda), memory_for(Device::kCuda), {}) {
    training_ = true;
  }
  void begin(const char*) override {}
  void compare(double, const std::string& what, Run run) override {
    Side side(memory_, 0);
    run(backend_, side, launch_);
    if (cudaDeviceSynchronize() != cudaSuccess) fail(what, ": ", emulated::error_text());
    for (const auto& [name, t] : emulated::take_traffic()) {
      const double ratio = static_cast<double>(t.touched) / static_cast<double>(t.least);
      std::printf("| %s | %s | %llu | %llu | %.2f |\n", name.c_str(), what.c_str(),
                  static_cast<unsigned long long>(t.touched),
                  static_cast<unsigned long long>(t.least), ratio);
      good &= ratio <= kMost;
    }
  }
  bool good = true;
};

bool all() {
  emulated::count_sectors(true);
  std::printf("| kernel | on | sectors | least | ratio |\n|---|---|--:|--:|--:|\n");
  TrafficCount count;
  check_layers(count);
  check_updates(count);
  check_codecs(count);
  if (!count.good) std::printf("a kernel touches more than %.2f times the least\n", kMost);
  return count.good;
}

}  // namespace
}  // namespace compact::kernels

int main() {
  try {
    return compact::kernels::all() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
