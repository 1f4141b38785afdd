// SPDX-License-Identifier: Apache-2.0
// kernel_check [BACKEND...]: the self-check of every backend but meta (or of those named), as a
// table. Needs no test library. Exit code 1 where a kernel is wrong or could not run.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include "compact/kernels/self_check.h"

namespace compact::kernels {
namespace {

int run(const std::vector<std::string_view>& wanted) {
  int wrong = 0;
  for (const Backend* backend : backends()) {
    if (backend->device == Device::kMeta) continue;
    if (!wanted.empty() && std::ranges::find(wanted, backend->name) == wanted.end()) continue;
    std::printf("%-24s %6s %8s\n", backend->name, "cases", "worst");
    for (const KernelCheck& c : self_check(*backend, memory_for(backend->device), serial())) {
      std::printf("  %-22s %6d %8.3f  %s\n", c.kernel.c_str(), c.cases, c.worst,
                  c.failure.empty() ? "ok" : c.failure.c_str());
      wrong += !c.failure.empty();
    }
  }
  return wrong;
}

}  // namespace
}  // namespace compact::kernels

int main(int argc, char** argv) {
  try {
    return compact::kernels::run({argv + 1, argv + argc}) ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
