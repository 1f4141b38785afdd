// SPDX-License-Identifier: Apache-2.0
// bench_saved_tensors [--threads N] [--seconds S] [--filter TEXT]: training steps of ResNets in
// f32, plain and inside scopes of saved tensors: bytes at rest between forward and backward
// (distinct storages, parameters excluded), the step's peak (weights and gradients included), and
// seconds of a step, as ratios to the plain one. Treatments take turns; the best time counts.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/models/resnet.h"
#include "compact/ops/memory.h"
#include "compact/ops/saved_tensors.h"

namespace {

using compact::cat;

struct Case {
  const char* network;
  int64_t batch, pixels;
};
struct Treatment {
  const char *name, *policy;
  bool lossless;
};
constexpr Treatment kTreatments[] = {
    {"plain", nullptr, false},
    {"idle scope", "slot * = keep", false},
    {"lossless", "slot * = keep", true},
    {"gact-l1.1 (8 bit)", "slot * = quantize:bits=8\nslot {fc,linear}.* = keep", true},
    {"gact-l1 (4 bit)", "slot * = quantize:bits=4\nslot {fc,linear}.* = keep", true},
    {"gact-l1.2 (2 bit)", "slot * = quantize:bits=2\nslot {fc,linear}.* = keep", true},
};

struct Result {
  double seconds = 1e9;
  int64_t rest = 0, peak = 0;
};

class Bench {
 public:
  Bench(const Case& c)
      : net_(compact::resnet_named(c.network).config),
        images_(at::randn({c.batch, 3, c.pixels, c.pixels})),
        labels_(at::randint(net_.config().classes, {c.batch}, at::kLong)) {
    for (const compact::Parameter* p : net_.parameters()) {
      options_.parameters.emplace_back(p->name, p->weight);
    }
  }

  void step(const Treatment& t, Result& result, bool one_thread) {
    compact::reset_peak(at::kCPU);
    const double start = clock_seconds(one_thread);
    {
      std::unique_ptr<compact::SavedTensorScope> scope;
      if (t.policy) {
        options_.lossless = t.lossless;
        ++options_.noise;
        scope = std::make_unique<compact::SavedTensorScope>(
            compact::Policy::parse(cat(t.policy, "\n"), "bench"), options_);
      }
      const int64_t before = compact::live_bytes(at::kCPU);
      at::Tensor loss = at::cross_entropy_loss(net_.forward(images_, true), labels_);
      result.rest = compact::live_bytes(at::kCPU) - before;
      torch::autograd::backward({loss}, {});
    }
    const at::NoGradGuard no_grad;
    for (compact::Parameter* p : net_.parameters()) {
      p->weight.add_(p->weight.grad(), -1e-4);
      p->weight.mutable_grad().reset();
    }
    result.seconds = std::min(result.seconds, clock_seconds(one_thread) - start);
    result.peak = compact::peak_bytes(at::kCPU);
  }

 private:
  compact::Resnet net_;
  at::Tensor images_, labels_;
  compact::SavedTensorOptions options_;
};

}  // namespace

int main(int argc, char** argv) {
  std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  compact::install_counting_allocator();
  constexpr Case kCases[] = {{"resnet50", 16, 224}, {"resnet20", 128, 32}, {"resnet56", 128, 32}};
  for (const Case& c : kCases) {
    if (std::string(c.network).find(settings->filter) == std::string::npos) continue;
    std::printf("%s, batch %lld, %lld x %lld, %lld threads\n", c.network,
                static_cast<long long>(c.batch), static_cast<long long>(c.pixels),
                static_cast<long long>(c.pixels), static_cast<long long>(settings->threads));
    std::printf("%-20s %10s %8s %10s %8s %9s %8s %9s\n", "", "rest MiB", "smaller", "peak MiB",
                "smaller", "step s", "slower", "images/s");
    Bench bench(c);
    std::vector<Result> results(std::size(kTreatments));
    const bool one = settings->threads == 1;
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < results.size(); ++i) bench.step(kTreatments[i], results[i], one);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const Result &r = results[i], &plain = results[0];
      const auto ratio = [](int64_t a, int64_t b) {
        return static_cast<double>(a) / static_cast<double>(b);
      };
      std::printf("%-20s %10.1f %7.2fx %10.1f %7.2fx %9.3f %8.3f %9.1f\n", kTreatments[i].name,
                  static_cast<double>(r.rest) * 0x1p-20, ratio(plain.rest, r.rest),
                  static_cast<double>(r.peak) * 0x1p-20, ratio(plain.peak, r.peak), r.seconds,
                  r.seconds / plain.seconds, static_cast<double>(c.batch) / r.seconds);
    }
    std::printf("\n");
  }
}
