// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/doctor_ranks.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <ostream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/parallel/nccl_link.h"
#include "compact/train/ranks.h"

namespace compact {
namespace {

constexpr int64_t kElements = int64_t{1} << 22;
constexpr int kTurns = 5;

bool check_on(Group& group, at::Device device, const char* carrier, std::ostream& out) {
  bool right = true;
  double best = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    const at::Tensor t =
        at::full({kElements}, group.rank() + turn, at::device(device).dtype(at::kFloat));
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    group.all_reduce(t);
    const auto sum = t[kElements - 1].item<float>();  // waits for a GPU
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count());
    const int want = group.size() * turn + group.size() * (group.size() - 1) / 2;
    right &= sum == static_cast<float>(want) && t.eq(want).all().item<bool>();
  }
  const int64_t wrong = group.sum_of(int64_t{!right});
  if (!group.leads()) return wrong == 0;
  // Bytes that each rank sends and receives in a ring all-reduce.
  const double moved = 2.0 * (group.size() - 1) / group.size() * kElements * sizeof(float);
  out << formatted("%-14s", "ranks") << group.size() << " by " << carrier << ": sum of "
      << format_bytes(kElements * static_cast<int64_t>(sizeof(float)))
      << formatted(" in %.2f ms, %.2f GB/s each way", best * 1e3, moved / best * 1e-9)
      << (wrong ? cat(", WRONG on ", wrong, " of them") : "") << "\n";
  return wrong == 0;
}

}  // namespace

bool try_ranks(Group& group, std::ostream& out) {
  bool right = check_on(group, at::kCPU, "gloo", out);
  const bool gpus = group.sum_of(int64_t{at::globalContext().hasCUDA()}) == group.size();
  if (gpus) {
    right &= check_on(group, rank_device(group, at::kCUDA), has_nccl() ? "NCCL" : "gloo, from GPUs",
                      out);
  }
  return right;
}

}  // namespace compact
