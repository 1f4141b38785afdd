// SPDX-License-Identifier: Apache-2.0
// Every CPU backend beside the reference, with the threads of support.h.
#include "compact/kernels/self_check.h"

#include "support.h"

namespace compact::kernels {
namespace {

TEST(SelfCheck, EveryBackendAgreesWithTheReference) {
  for (const Backend* backend : cpu_backends()) {
    const auto checks = self_check(*backend, host_memory(), threaded());
    EXPECT_GE(checks.size(), 20u);
    for (const KernelCheck& c : checks) {
      EXPECT_EQ(c.failure, "") << backend->name << " " << c.kernel;
      EXPECT_GT(c.cases, 0) << c.kernel;
    }
  }
}

}  // namespace
}  // namespace compact::kernels
