// SPDX-License-Identifier: Apache-2.0
// bench_kernels [--threads N] [--seconds S] [--filter TEXT]: every CPU kernel beside the floor (a
// memcpy of half the bytes that it must read and write: a copy moves each twice; for srht, of its
// input) and beside PyTorch's own operations. One table, one run: the three take turns, and the
// best of each counts, so that a busy machine disturbs the ratios little.
#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "bench/timing.h"
#include "compact/codecs/launch.h"

namespace {

using at::Tensor;
using compact::kernels::Launch;
namespace k = compact::kernels;

class Bench {
 public:
  explicit Bench(Settings settings)
      : settings_(std::move(settings)),
        cpu_(k::backend_for(k::Device::kCpu)),
        launch_(compact::launch_for(at::empty({1}))) {}

  void run() {
    std::printf("backend %s, %lld threads\n", cpu_.name, static_cast<long long>(settings_.threads));
    std::printf("%-28s %9s %8s %10s %9s\n", "kernel", "ms", "GB/s", "of memcpy", "of ATen");
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      norm(type);
      swiglu(type);
      rope(type);
      cross_entropy(type);
      srht(type, 2048);
      srht(type, 1376);
      draw(type);
      adamw(type);
      if (type == at::kFloat) float8();
      fold(type);
    }
  }

 private:
  void measure(std::string name, at::ScalarType type, int64_t bytes, const Work& ours,
               const Work& theirs) const {
    name += type == at::kFloat ? " f32" : " bf16";
    if (name.find(settings_.filter) == std::string::npos) return;
    Copy copy(bytes / 2);
    const std::vector<double> best =
        best_times({ours, [&] { copy.run(launch_, settings_.threads); }, theirs}, settings_);
    std::printf("%-28s %9.3f %8.1f %10.2f %9.3f\n", name.c_str(), best[0] * 1e3,
                static_cast<double>(bytes) / best[0] / 1e9, best[0] / best[1], best[0] / best[2]);
    std::fflush(stdout);
  }

  void norm(at::ScalarType type) const {
    const int64_t rows = 4096, n = 2048;
    const Tensor x = at::randn({rows, n}, type), gy = at::randn({rows, n}, type);
    const Tensor w = at::randn({n}, type), y = at::empty_like(x), gw = at::empty_like(w);
    const Tensor rstd = at::empty({rows}), parts = at::empty({k::kRmsNormParts, n});
    const k::Type t = compact::type_of(type);
    const int64_t bytes = x.nbytes();
    measure(
        "rms_norm", type, 2 * bytes,
        [&] {
          cpu_.rms_norm({x.data_ptr(), w.data_ptr(), y.data_ptr(), rstd.data_ptr<float>(), rows, n,
                         1e-6f, t, t},
                        launch_);
        },
        [&] { at::rms_norm(x, {n}, w, 1e-6); });
    measure(
        "rms_norm_backward", type, 3 * bytes,
        [&] {
          cpu_.rms_norm_backward(
              {gy.data_ptr(), x.data_ptr(), w.data_ptr(), rstd.data_ptr<float>(), nullptr,
               y.data_ptr(), gw.data_ptr(), parts.data_ptr<float>(), rows, n, t, t},
              launch_);
        },
        [&] {  // the operations that autograd runs for the composite
          const Tensor r = rstd.to(type).unsqueeze(1), g = gy * w, normed = x * r;
          (g - normed * (g * normed).mean(1, true)).mul_(r);
          (gy * normed).sum(0);
        });
  }

  void swiglu(at::ScalarType type) const {
    const int64_t rows = 4096, m = 1376;
    const Tensor x = at::randn({rows, 2 * m}, type), g = at::randn({rows, m}, type);
    const Tensor silu = at::empty_like(g), p = at::empty_like(g), gx = at::empty_like(x);
    const Tensor gate = x.narrow(1, 0, m), up = x.narrow(1, m, m);
    const k::Type t = compact::type_of(type);
    const int64_t bytes = g.nbytes();
    Tensor s_out = silu, p_out = p;
    measure(
        "swiglu", type, 3 * bytes,
        [&] {
          cpu_.swiglu({x.data_ptr(), nullptr, p.data_ptr(), rows, m, t}, launch_);
        },
        [&] { at::mul_out(p_out, at::silu_out(s_out, gate), up); });
    measure(
        "swiglu_backward", type, 5 * bytes,
        [&] {
          cpu_.swiglu_backward({g.data_ptr(), x.data_ptr(), nullptr, gx.data_ptr(), rows, m, t},
                               launch_);
        },
        [&] {
          Tensor ggate = gx.narrow(1, 0, m), gup = gx.narrow(1, m, m);
          at::mul_out(gup, g, s_out);
          at::silu_backward_out(ggate, at::mul_out(p_out, g, up), gate);
        });
  }

  void rope(at::ScalarType type) const {
    const int64_t tokens = 4096, length = 256, heads = 16, dim = 64;
    const Tensor x = at::randn({tokens, heads * dim}, type);
    const Tensor angle = at::rand({length, dim / 2}), cos = angle.cos(), sin = angle.sin();
    const Tensor whole_cos = at::cat({cos, cos}, 1).to(type).view({1, length, 1, dim});
    const Tensor whole_sin = at::cat({sin, sin}, 1).to(type).view({1, length, 1, dim});
    const Tensor blocks = x.view({-1, length, heads, dim});
    measure(
        "rope", type, 2 * x.nbytes(),
        [&] {
          cpu_.rope({x.data_ptr(), cos.data_ptr<float>(), sin.data_ptr<float>(), tokens, length,
                     heads, dim, dim, heads * dim, false, compact::type_of(type)},
                    launch_);
        },
        [&] {
          const Tensor a = blocks.narrow(3, 0, dim / 2), b = blocks.narrow(3, dim / 2, dim / 2);
          (blocks * whole_cos).add_(at::cat({-b, a}, 3).mul_(whole_sin));
        });
  }

  void cross_entropy(at::ScalarType type) const {
    const int64_t rows = 512, vocabulary = 32000;
    const Tensor x = at::randn({rows, vocabulary}, type), grad = at::empty_like(x);
    const Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
    const Tensor lse = at::empty({rows}), loss = at::empty({rows});
    const k::Type t = compact::type_of(type);
    measure(
        "cross_entropy", type, x.nbytes(),
        [&] {
          cpu_.cross_entropy({x.data_ptr(), targets.data_ptr<int64_t>(), lse.data_ptr<float>(),
                              loss.data_ptr<float>(), nullptr, rows, vocabulary, t},
                             launch_);
        },
        [&] { at::cross_entropy_loss(x, targets); });
    const Tensor log_probs = at::log_softmax(x, 1), one = at::ones({}, type);
    const auto [value, weight] = at::nll_loss_forward(log_probs, targets, {}, 1, -100);
    measure(
        "cross_entropy_backward", type, 2 * x.nbytes(),
        [&] {
          cpu_.cross_entropy_backward(
              {x.data_ptr(), nullptr, lse.data_ptr<float>(), targets.data_ptr<int64_t>(),
               grad.data_ptr(), rows, vocabulary, 1.0f / rows, t},
              launch_);
        },
        [&] {
          at::_log_softmax_backward_data(
              at::nll_loss_backward(one, log_probs, targets, {}, 1, -100, weight), log_probs, 1,
              type);
        });
  }

  void srht(at::ScalarType type, int64_t n) const {
    const int64_t rows = 8192, r = n / 4,
                  width = n + static_cast<int64_t>(std::bit_floor<uint64_t>(n));
    const Tensor x = at::randn({rows, n}, type), p = at::randn({n, r}, type);
    const Tensor signs = at::randint(1 << 30, {width / 32 + 1}, at::kInt);
    const Tensor index = std::get<0>(at::randperm(n).narrow(0, 0, r).sort()).to(at::kInt);
    const Tensor back = at::empty({rows, n});
    Tensor z = at::empty({rows, r}, type);
    const k::SrhtPlan plan = {static_cast<const uint32_t*>(signs.data_ptr()),
                              index.data_ptr<int32_t>(), n, r};
    const k::Type t = compact::type_of(type);
    measure(
        "srht n=" + std::to_string(n), type, 2 * x.nbytes(),
        [&] {
          cpu_.srht({plan, x.data_ptr(), z.data_ptr(), rows, n, t}, launch_);
        },
        [&] { at::mm_out(z, x, p); });
    const Tensor pt = p.t();
    measure(
        "srht_transpose n=" + std::to_string(n), type, 2 * back.nbytes(),
        [&] {
          cpu_.srht_transpose({plan, z.data_ptr(), back.data_ptr<float>(), rows, t}, launch_);
        },
        [&] { at::mm(z, pt); });
  }

  void draw(at::ScalarType type) const {
    Tensor out = at::empty({1 << 20}, type);
    measure(
        "draw normal", type, 2 * out.nbytes(),
        [&] {
          cpu_.draw({out.data_ptr(), out.numel(), 7, 1.0f, k::Distribution::kNormal,
                     compact::type_of(type)},
                    launch_);
        },
        [&] { out.normal_(); });
  }

  // Beside the cast to one byte that ATen has, which has no scale and rounds to nearest.
  void float8() const {
    const Tensor x = at::randn({1 << 13, 1 << 10}), y = at::empty_like(x);
    const Tensor codes = at::empty(x.sizes(), at::kByte), scales = at::empty({x.size(0), 4});
    const Tensor plain = x.to(at::kFloat8_e4m3fn);
    auto* bytes = static_cast<uint8_t*>(codes.data_ptr());
    const k::Float8Pack pack{.x = x.const_data_ptr<float>(),
                             .codes = bytes,
                             .scales = scales.data_ptr<float>(),
                             .rows = x.size(0),
                             .n = x.size(1),
                             .is_signed = true,
                             .key = 3};
    measure(
        "float8_pack", at::kFloat, x.nbytes() + codes.nbytes(),
        [&] { cpu_.float8_pack(pack, launch_); }, [&] { plain.copy_(x); });
    const k::Float8Unpack unpack{.codes = bytes,
                                 .scales = scales.const_data_ptr<float>(),
                                 .x = y.data_ptr<float>(),
                                 .rows = x.size(0),
                                 .n = x.size(1),
                                 .is_signed = true};
    measure(
        "float8_unpack", at::kFloat, x.nbytes() + codes.nbytes(),
        [&] { cpu_.float8_unpack(unpack, launch_); }, [&] { y.copy_(plain); });
  }

  void adamw(at::ScalarType type) const {
    const int64_t count = 1 << 23;
    const Tensor p = at::randn({count}, type), g = at::randn({count}, type);
    const Tensor m = at::zeros({count}, type), v = at::zeros({count}, type);
    const Tensor step = at::ones({});
    const k::Type t = compact::type_of(type);
    measure(
        "adamw", type, 7 * p.nbytes(),
        [&] {
          cpu_.adamw({.param = p.data_ptr(),
                      .grad = g.data_ptr(),
                      .m = m.data_ptr(),
                      .v = v.data_ptr(),
                      .count = count,
                      .lr = 1e-3f,
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .eps = 1e-6f,
                      .bias1 = 0.1f,
                      .bias2 = 0.001f,
                      .key = 3,
                      .type = t,
                      .grad_type = t,
                      .state_type = t},
                     launch_);
        },
        [&] {
          at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0, 1e-6, false,
                            false);
        });
  }

  void fold(at::ScalarType type) const {
    const int64_t count = 1 << 23;
    Tensor w = at::randn({count}, type);
    const Tensor d = at::randn({count});
    measure(
        "fold", type, 2 * w.nbytes() + d.nbytes(),
        [&] {
          cpu_.fold({w.data_ptr(), nullptr, d.data_ptr<float>(), count, 1.0f, 1e-6f, 3, 0,
                     compact::type_of(type)},
                    launch_);
        },
        [&] { w.mul_(1.0).add_(d, 1e-6); });
  }

  Settings settings_;
  const k::Backend& cpu_;
  Launch launch_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  Bench(*settings).run();
}
