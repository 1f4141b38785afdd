// SPDX-License-Identifier: Apache-2.0
// bench_pooled_convolution [--threads N] [--seconds S] [--filter TEXT]: the weight's gradient of
// the 1 x 1 convolutions of a ResNet-50, batch 16, in f32: from the whole input, from means over 2
// x 2 windows, and from the map that these spread to; beside one read of the input (copy) and the
// one product of means that there must be.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/codecs/codec.h"
#include "compact/ops/stages/map_stages.h"

namespace {

using compact::cat;
using compact::Encoded;
using compact::Stage;

struct Shape {
  int64_t in, out, pixels;
};
constexpr int64_t kBatch = 16;
constexpr Shape kShapes[] = {
    {64, 256, 56}, {256, 64, 56}, {512, 128, 28}, {1024, 256, 14}, {2048, 512, 7}};

at::Tensor maps(int64_t channels, int64_t pixels) {
  return at::randn({kBatch, channels, pixels, pixels}).contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  const at::NoGradGuard no_grad;
  std::printf("%-20s %9s %9s | %9s %9s %9s | %8s\n", "in, out, pixels", "copy ms", "product",
              "whole ms", "means", "spread", "faster");
  for (const Shape& s : kShapes) {
    const std::string name = cat(s.in, ", ", s.out, ", ", s.pixels);
    if (name.find(settings->filter) == std::string::npos) continue;
    const at::Tensor x = maps(s.in, s.pixels), g = maps(s.out, s.pixels);
    const auto stage = compact::conv_stage(1, 1, 0);
    const std::vector<compact::Weight> weights = {at::randn({s.out, s.in, 1, 1})};
    const Encoded held = compact::make_codec("pool:size=2")->encode(x, 0);
    const at::Tensor means = held.decode_means(held.parts);
    const auto gradient = [&](const at::Tensor& input, const at::Tensor& of_means) {
      Stage::Backward b;
      b.gy = g;
      b.input = input;
      b.means = of_means;
      b.windows = held.windows;
      b.weights = weights;
      b.want_input = false;
      b.want_parameters = {true};
      b.gparameters.resize(1);
      stage->backward(b);
      return b.gparameters[0];
    };
    const at::Tensor rows = means.permute({0, 2, 3, 1}).reshape({-1, s.in}),
                     sums = at::randn({rows.size(0), s.out});
    at::Tensor copy = at::empty_like(x);
    const auto best =
        best_times({[&] { copy.copy_(x); }, [&] { sums.t().mm(rows); }, [&] { gradient(x, {}); },
                    [&] { gradient({}, means); }, [&] { gradient(held.restore(), {}); }},
                   *settings);
    std::printf("%-20s %9.3f %9.3f | %9.3f %9.3f %9.3f | %7.2fx\n", name.c_str(), best[0] * 1e3,
                best[1] * 1e3, best[2] * 1e3, best[3] * 1e3, best[4] * 1e3, best[2] / best[3]);
  }
}
