// SPDX-License-Identifier: Apache-2.0
// cuda_traffic: sectors that the warps of every CUDA kernel touch beside the least possible, on
// rows as training has them. Exit code 1 where a kernel touches more than kMost times the least.
#include <cstdio>
#include <exception>

#include "cuda_runtime.h"
#include "sectors.h"
#include "traffic.h"

namespace compact::kernels {

constexpr double kMost = 1.15;

bool report(const std::string& what, const std::function<void(Tensors&)>& run) {
  Tensors tensors;
  run(tensors);
  if (cudaDeviceSynchronize() != cudaSuccess) fail(what, ": ", emulated::error_text());
  bool good = true;
  for (const auto& [name, t] : emulated::take_traffic()) {
    const double ratio = static_cast<double>(t.touched) / static_cast<double>(t.least);
    std::printf("| %s | %s | %llu | %llu | %.2f |\n", name.c_str(), what.c_str(),
                static_cast<unsigned long long>(t.touched),
                static_cast<unsigned long long>(t.least), ratio);
    good &= ratio <= kMost;
  }
  return good;
}

namespace {

bool all() {
  emulated::count_sectors(true);
  std::printf("| kernel | on | sectors | least | ratio |\n|---|---|--:|--:|--:|\n");
  bool good = true;
  for (const Type type : kTypes) {
    good &= traffic_of_layers(type);
    good &= traffic_of_updates(type);
    good &= traffic_of_codecs(type);
  }
  if (!good) std::printf("a kernel touches more than %.2f times the least\n", kMost);
  return good;
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
