// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/self_check.h"

#include <limits>
#include <string_view>

#include "compact/base/philox.h"
#include "compact/kernels/gpu.h"
#include "compact/kernels/self_check_cases_impl.h"
#if defined(COMPACT_HAS_CUDA)
#include "compact/kernels/cuda/memory.h"
#endif

namespace compact::kernels {
namespace {

const Backend& reference() {
  for (const Backend* b : backends()) {
    if (std::string_view(b->name) == "reference") return *b;
  }
  fail("this build has no reference kernels");
}

}  // namespace

Memory memory_for([[maybe_unused]] Device device) {
#if defined(COMPACT_HAS_CUDA)
  if (device == Device::kCuda) return cuda_memory();
#endif
  return host_memory();
}

void Checker::begin(const char* kernel) {
  results_.emplace_back();
  results_.back().kernel = kernel;
}

void Checker::compare(double tolerance, const std::string& what, Run run) {
  KernelCheck& result = results_.back();
  ++result.cases;
  if (!result.failure.empty()) return;
  Side want(host_memory(), 0), got(memory_, 0), again(memory_, 1);
  run(reference(), want, serial());
  run(backend_, got, launch_);
  run(backend_, again, launch_);
  want.fetch();
  got.fetch();
  again.fetch();
  std::string wrong = got.difference(want, tolerance, result.worst);
  if (wrong.empty()) {
    wrong = again.difference(got, 0, result.worst);
    if (!wrong.empty()) wrong = "misaligned: " + wrong;
  }
  if (!wrong.empty()) result.failure = cat(what, ": ", wrong);
}

std::vector<float> Checker::values(int64_t count, uint64_t seed, bool with_specials) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    const Random4 r = philox(seed, i);
    out[i] = static_cast<float>(static_cast<int32_t>(r.v[0])) * 0x1p-30f;
    if (with_specials && r.v[1] % 16 == 0) out[i] = kSpecial[r.v[2] % 3];
  }
  return out;
}

bool Checker::takes_srht(int64_t n) const {
  return backend_.device != Device::kCuda || srht_row_bytes(n) <= planned_gpu().shared_memory;
}

std::vector<KernelCheck> self_check(const Backend& backend, const Memory& memory,
                                    const Launch& launch) {
  Checker checker(backend, memory, launch);
  check_layers(checker);
  check_updates(checker);
  check_codecs(checker);
  return checker.results();
}

}  // namespace compact::kernels
