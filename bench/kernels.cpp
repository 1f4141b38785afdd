// SPDX-License-Identifier: Apache-2.0
// bench_kernels [--device cpu|cuda] [--threads N] [--seconds S] [--filter TEXT] [--json FILE]:
// every kernel of a device beside the floor and beside PyTorch's own operations. The floor is a
// copy of half the bytes that the kernel must read and write, since a copy moves each twice: on a
// CPU a memcpy, on a GPU one within its memory, timed by events.
#include <cstdio>
#include <exception>

#include "bench/kernel_codecs.h"

namespace {

class Kernels : public CodecKernels {
 public:
  using CodecKernels::CodecKernels;

  void run() {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      norm(type);
      swiglu(type);
      rope(type);
      cross_entropy(type);
      dropout(type);
      CodecKernels::run(type);
      adamw(type);
      fold(type);
    }
    write();
  }

 private:
  void norm(at::ScalarType type) {
    const int64_t rows = 4096 * larger(), n = 2048;
    const int64_t count = k::rms_norm_parts(backend().device, rows, n);
    const Tensor x = at::randn({rows, n}, on(type)), gy = at::randn({rows, n}, on(type));
    const Tensor w = at::randn({n}, on(type)), y = at::empty_like(x), gw = at::empty_like(w);
    const Tensor rstd = at::empty({rows}, on(at::kFloat)),
                 parts = at::empty({count, n}, on(at::kFloat));
    const k::Type t = compact::type_of(type);
    const size_t bytes = x.nbytes();
    measure(
        "rms_norm", type, 2 * bytes,
        [&] {
          backend().rms_norm({x.data_ptr(), w.data_ptr(), y.data_ptr(), rstd.data_ptr<float>(),
                              rows, n, 1e-6f, t, t},
                             launch());
        },
        [&] { at::rms_norm(x, {n}, w, 1e-6); });
    measure(
        "rms_norm_backward", type, 3 * bytes,
        [&] {
          backend().rms_norm_backward(
              {gy.data_ptr(), x.data_ptr(), w.data_ptr(), rstd.data_ptr<float>(), nullptr,
               y.data_ptr(), gw.data_ptr(), parts.data_ptr<float>(), rows, n, count, t, t},
              launch());
        },
        [&] {  // the operations that autograd runs for the composite
          const Tensor r = rstd.to(type).unsqueeze(1), g = gy * w, normed = x * r;
          (g - normed * (g * normed).mean(1, true)).mul_(r);
          (gy * normed).sum(0);
        });
  }

  void swiglu(at::ScalarType type) {
    const int64_t rows = 4096 * larger(), m = 1376;
    const Tensor x = at::randn({rows, 2 * m}, on(type)), g = at::randn({rows, m}, on(type));
    const Tensor silu = at::empty_like(g), p = at::empty_like(g), gx = at::empty_like(x);
    const Tensor gate = x.narrow(1, 0, m), up = x.narrow(1, m, m);
    const k::Type t = compact::type_of(type);
    const size_t bytes = g.nbytes();
    Tensor s_out = silu, p_out = p;
    measure(
        "swiglu", type, 3 * bytes,
        [&] {
          backend().swiglu({x.data_ptr(), nullptr, p.data_ptr(), rows, m, t}, launch());
        },
        [&] { at::mul_out(p_out, at::silu_out(s_out, gate), up); });
    measure(
        "swiglu_backward", type, 5 * bytes,
        [&] {
          backend().swiglu_backward(
              {g.data_ptr(), x.data_ptr(), nullptr, gx.data_ptr(), rows, m, t}, launch());
        },
        [&] {
          Tensor ggate = gx.narrow(1, 0, m), gup = gx.narrow(1, m, m);
          at::mul_out(gup, g, s_out);
          at::silu_backward_out(ggate, at::mul_out(p_out, g, up), gate);
        });
  }

  void rope(at::ScalarType type) {
    const int64_t tokens = 4096 * larger(), length = 256, heads = 16, dim = 64;
    const Tensor x = at::randn({tokens, heads * dim}, on(type));
    const Tensor angle = at::rand({length, dim / 2}, on(at::kFloat)), cos = angle.cos(),
                 sin = angle.sin();
    const Tensor whole_cos = at::cat({cos, cos}, 1).to(type).view({1, length, 1, dim});
    const Tensor whole_sin = at::cat({sin, sin}, 1).to(type).view({1, length, 1, dim});
    const Tensor blocks = x.view({-1, length, heads, dim});
    measure(
        "rope", type, 2 * x.nbytes(),
        [&] {
          backend().rope({x.data_ptr(), cos.data_ptr<float>(), sin.data_ptr<float>(), tokens,
                          length, heads, dim, dim, heads * dim, false, compact::type_of(type)},
                         launch());
        },
        [&] {
          const Tensor a = blocks.narrow(3, 0, dim / 2), b = blocks.narrow(3, dim / 2, dim / 2);
          (blocks * whole_cos).add_(at::cat({-b, a}, 3).mul_(whole_sin));
        });
  }

  void cross_entropy(at::ScalarType type) {
    const int64_t rows = 512 * larger(), vocabulary = 32000;
    const Tensor x = at::randn({rows, vocabulary}, on(type)), grad = at::empty_like(x);
    const Tensor targets = at::randint(vocabulary, {rows}, on(at::kLong));
    const Tensor lse = at::empty({rows}, on(at::kFloat)), loss = at::empty({rows}, on(at::kFloat));
    const k::Type t = compact::type_of(type);
    measure(
        "cross_entropy", type, x.nbytes(),
        [&] {
          backend().cross_entropy({x.data_ptr(), targets.data_ptr<int64_t>(), lse.data_ptr<float>(),
                                   loss.data_ptr<float>(), nullptr, rows, vocabulary, t},
                                  launch());
        },
        [&] { at::cross_entropy_loss(x, targets); });
    const Tensor log_probs = at::log_softmax(x, 1), one = at::ones({}, on(type));
    const auto [value, weight] = at::nll_loss_forward(log_probs, targets, {}, 1, -100);
    measure(
        "cross_entropy_backward", type, 2 * x.nbytes(),
        [&] {
          backend().cross_entropy_backward(
              {x.data_ptr(), nullptr, lse.data_ptr<float>(), targets.data_ptr<int64_t>(),
               grad.data_ptr(), rows, vocabulary, 1.0f / static_cast<float>(rows), t},
              launch());
        },
        [&] {
          at::_log_softmax_backward_data(
              at::nll_loss_backward(one, log_probs, targets, {}, 1, -100, weight), log_probs, 1,
              type);
        });
  }

  void dropout(at::ScalarType type) {
    const int64_t count = (1 << 23) * larger();
    const Tensor x = at::randn({count}, on(type)), y = at::empty_like(x);
    measure(
        "dropout", type, 2 * x.nbytes(),
        [&] {
          backend().dropout(
              {x.data_ptr(), y.data_ptr(), count, /*key=*/3, 6554, compact::type_of(type)},
              launch());
        },
        [&] { at::native_dropout(x, 0.1, true); });
  }

  // One tensor, and as many elements in tensors of which some are small, together.
  void adamw(at::ScalarType type) {
    const int64_t count = (1 << 23) * larger();
    const std::vector<int64_t> whole = {count};
    std::vector<int64_t> parts(k::kAdamWTogether, count / 64);
    for (size_t i = 0; i < 4; ++i) parts[i] = count / 16 + 2048;
    steps("adamw", type, whole);
    steps("adamw_all", type, parts);
  }
  void steps(const char* name, at::ScalarType type, const std::vector<int64_t>& counts) {
    const k::Type t = compact::type_of(type);
    std::vector<Tensor> p, g, m, v, step;
    std::vector<k::AdamW> list;
    size_t bytes = 0;
    for (const int64_t count : counts) {
      p.push_back(at::randn({count}, on(type)));
      g.push_back(at::randn({count}, on(type)));
      m.push_back(at::zeros({count}, on(type)));
      v.push_back(at::zeros({count}, on(type)));
      step.push_back(at::ones({}, on(at::kFloat)));
      bytes += 7 * p.back().nbytes();
      list.push_back({.param = p.back().data_ptr(),
                      .grad = g.back().data_ptr(),
                      .m = m.back().data_ptr(),
                      .v = v.back().data_ptr(),
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
                      .state_type = t});
    }
    measure(
        name, type, bytes,
        [&] {
          if (list.size() == 1) return backend().adamw(list[0], launch());
          backend().adamw_all({list.data(), std::ssize(list)}, launch());
        },
        [&] { at::_fused_adamw_(p, g, m, v, {}, step, 1e-3, 0.9, 0.999, 0, 1e-6, false, false); });
  }

  void fold(at::ScalarType type) {
    const int64_t count = (1 << 23) * larger();
    Tensor w = at::randn({count}, on(type));
    const Tensor d = at::randn({count}, on(at::kFloat));
    measure(
        "fold", type, 2 * w.nbytes() + d.nbytes(),
        [&] {
          backend().fold({w.data_ptr(), nullptr, d.data_ptr<float>(), count, 1.0f, 1e-6f, 3, 0,
                          compact::type_of(type)},
                         launch());
        },
        [&] { w.mul_(1.0).add_(d, 1e-6); });
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Settings> settings = Settings::begin(argc, argv, /*knows_devices=*/true);
  if (!settings) return 2;
  try {
    Kernels(*settings).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
