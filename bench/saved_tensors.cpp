// SPDX-License-Identifier: Apache-2.0
// bench_saved_tensors [--threads N] [--seconds S] [--filter TEXT]: training steps of ResNets in
// f32: of plain operations, of these with every block run again in the backward pass
// (checkpointing), inside scopes of saved tensors, and of segments under presets.
// Bytes at rest between forward and backward (distinct storages, parameters excluded), the step's
// peak (weights and gradients included) and seconds of a step, as ratios to the plain one.
// Treatments take turns; the best time counts.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "tests/models/plain_resnet.h"

namespace {

using compact::cat;

struct Case {
  const char* network;
  int64_t batch, pixels;
};
struct Treatment {
  const char* name;
  const char* scope = nullptr;   // a policy of a scope around plain operations
  bool lossless = false;         // its typed treatments
  const char* preset = nullptr;  // of segments, or the lines of a policy
  bool checkpoint = false;       // plain operations, every block run again
};
constexpr Treatment kTreatments[] = {
    {"plain"},
    {"checkpointing", nullptr, false, nullptr, true},
    {"idle scope", "slot * = keep"},
    {"lossless scope", "slot * = keep", true},
    {"scope, 4 bit", "slot * = quantize:bits=4\nslot {fc,linear}.* = keep", true},
    {"scope, 2 bit", "slot * = quantize:bits=2\nslot {fc,linear}.* = keep", true},
    {"off", nullptr, false, "off"},
    {"exact", nullptr, false, "exact"},
    {"blocks recomputed", nullptr, false,
     "slot * = keep\nslot layer*.{conv*,relu*,downsample} = recompute\n"
     "slot {stem.relu,average.input} = mask:of=sign\n"},
    {"gact-l1.1 (8 bit)", nullptr, false, "gact-l1.1"},
    {"gact-l1 (4 bit)", nullptr, false, "gact-l1"},
    {"gact-l1.2 (2 bit)", nullptr, false, "gact-l1.2"},
    {"pool", nullptr, false, "pool"},
    {"pool-quant", nullptr, false, "pool-quant"},
};

struct Result {
  double seconds = 1e9;
  int64_t rest = 0, peak = 0;
};

class Bench {
 public:
  Bench(const Case& c, const Treatment& t)
      : treatment_(t),
        net_(compact::named(compact::resnets(), c.network, "no model").config,
             !t.preset                    ? compact::Policy()
             : std::strchr(t.preset, '=') ? compact::Policy::parse(t.preset, "bench")
                                          : compact::Policy::preset(t.preset)),
        plain_(net_) {
    for (const compact::Parameter* p : net_.parameters()) {
      options_.parameters.emplace_back(p->name, p->weight);
    }
    options_.lossless = t.lossless;
  }

  void step(const at::Tensor& images, const at::Tensor& labels, bool one_thread) {
    compact::reset_peak(at::kCPU);
    const int64_t outside = compact::live_bytes(at::kCPU) - weights();
    const double start = clock_seconds(one_thread);
    ++options_.noise;
    {
      std::unique_ptr<compact::SavedTensorScope> scope;
      if (treatment_.scope) {
        scope = std::make_unique<compact::SavedTensorScope>(
            compact::Policy::parse(cat(treatment_.scope, "\n"), "bench"), options_);
      }
      const int64_t before = compact::live_bytes(at::kCPU);
      at::Tensor loss = at::cross_entropy_loss(
          treatment_.preset ? net_.forward(images, {.noise = options_.noise})
                            : plain_.forward(images, true, treatment_.checkpoint),
          labels);
      result.rest = compact::live_bytes(at::kCPU) - before;
      torch::autograd::backward({loss}, {});
    }
    const at::NoGradGuard no_grad;
    for (compact::Parameter* p : net_.parameters()) {
      p->weight.add_(p->weight.grad(), -1e-4);
      p->weight.mutable_grad().reset();
    }
    result.seconds = std::min(result.seconds, clock_seconds(one_thread) - start);
    // With the images.
    result.peak = compact::peak_bytes(at::kCPU) - outside + static_cast<int64_t>(images.nbytes());
  }

  Result result;

 private:
  int64_t weights() const {
    int64_t sum = 0;
    for (const auto& [name, t] : net_.named_tensors()) sum += static_cast<int64_t>(t.nbytes());
    return sum;
  }

  const Treatment& treatment_;
  compact::Resnet net_;
  compact::PlainResnet plain_;
  compact::SavedTensorOptions options_;
};

}  // namespace

int main(int argc, char** argv) {
  std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  compact::install_counting_allocator();
  constexpr Case kCases[] = {
      {"resnet50", 16, 224}, {"resnet18", 32, 224}, {"resnet20", 128, 32}, {"resnet56", 128, 32}};
  for (const Case& c : kCases) {
    if (std::string(c.network).find(settings->filter) == std::string::npos) continue;
    std::printf("%s, batch %lld, %lld x %lld, %lld threads\n", c.network,
                static_cast<long long>(c.batch), static_cast<long long>(c.pixels),
                static_cast<long long>(c.pixels), static_cast<long long>(settings->threads));
    std::printf("%-20s %10s %8s %10s %8s %9s %8s %9s\n", "", "rest MiB", "smaller", "peak MiB",
                "smaller", "step s", "slower", "images/s");
    const at::Tensor images = at::randn({c.batch, 3, c.pixels, c.pixels}),
                     labels = at::randint(10, {c.batch}, at::kLong);
    std::vector<std::unique_ptr<Bench>> all;
    for (const Treatment& t : kTreatments) all.push_back(std::make_unique<Bench>(c, t));
    for (int round = 0; round < 3; ++round) {
      for (const auto& bench : all) bench->step(images, labels, settings->threads == 1);
    }
    for (const auto& bench : all) {
      const Result &r = bench->result, &plain = all[0]->result;
      const auto ratio = [](int64_t a, int64_t b) {
        return static_cast<double>(a) / static_cast<double>(b);
      };
      std::printf("%-20s %10.1f %7.2fx %10.1f %7.2fx %9.3f %8.3f %9.1f\n",
                  kTreatments[&bench - all.data()].name, static_cast<double>(r.rest) * 0x1p-20,
                  ratio(plain.rest, r.rest), static_cast<double>(r.peak) * 0x1p-20,
                  ratio(plain.peak, r.peak), r.seconds, r.seconds / plain.seconds,
                  static_cast<double>(c.batch) / r.seconds);
    }
    std::printf("\n");
  }
}
