// SPDX-License-Identifier: Apache-2.0
#include "support.h"

namespace compact::kernels {
namespace {

struct Shape {
  int64_t rows, n;
};
const Shape kShapes[] = {{0, 8}, {1, 1}, {3, 5}, {2, 16}, {37, 67}, {64, 344}, {5, 1376}};

// Types of activations and of the weight.
struct Types {
  Type type, weight;
};
const Types kPairs[] = {{Type::kFloat32, Type::kFloat32},
                        {Type::kFloat32, Type::kBFloat16},
                        {Type::kBFloat16, Type::kFloat32},
                        {Type::kBFloat16, Type::kBFloat16}};
std::string text_of(const Backend& backend, Types types, Shape s) {
  return cat(backend.name, " ", name_of(types.type), " weight ", name_of(types.weight), " ", s.rows,
             "x", s.n);
}

TEST(RmsNorm, IsTheFormula) {
  Buffer x(Type::kFloat32, std::vector<float>{3, 4}), w(Type::kFloat32, std::vector<float>{1, 2});
  Buffer y(Type::kFloat32, 2), rstd(Type::kFloat32, 1);
  reference_backend.rms_norm(
      {x.data(), w.data(), y.data(), rstd.f32(), 1, 2, 0.0f, Type::kFloat32, Type::kFloat32},
      serial());
  EXPECT_FLOAT_EQ(rstd[0], 1 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(y[1], 8 / std::sqrt(12.5f));
}

TEST(RmsNorm, NanStaysInItsRow) {
  for (const Backend* backend : cpu_backends()) {
    Buffer x = random(Type::kBFloat16, 3 * 40, 1), w = random(Type::kBFloat16, 40, 2);
    x.set(45, NAN);
    Buffer y(Type::kBFloat16, 3 * 40), rstd(Type::kFloat32, 3);
    backend->rms_norm(
        {x.data(), w.data(), y.data(), rstd.f32(), 3, 40, 1e-6f, Type::kBFloat16, Type::kBFloat16},
        serial());
    for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(y[i]), i / 40 == 1) << backend->name;
  }
}

// The gradient of x; written over the residual (without the weight's gradient) where `alias`.
Buffer backward(const Backend& backend, Types types, Shape s, bool alias, const Launch& launch) {
  const Type type = types.type;
  Buffer gy = random(type, s.rows * s.n, 3), x = random(type, s.rows * s.n, 4);
  Buffer w = random(types.weight, s.n, 5), more = random(type, s.rows * s.n, 6);
  Buffer rstd(Type::kFloat32, s.rows), y(type, s.rows * s.n);
  reference_backend.rms_norm(
      {x.data(), w.data(), y.data(), rstd.f32(), s.rows, s.n, 1e-6f, type, types.weight}, serial());
  Buffer gx(type, s.rows * s.n), gweight(types.weight, s.n);
  const int64_t count = rms_norm_parts(Device::kCpu, s.rows, s.n);
  Buffer parts(Type::kFloat32, count * s.n);
  backend.rms_norm_backward({gy.data(), x.data(), w.data(), rstd.f32(), more.data(),
                             alias ? more.data() : gx.data(), alias ? nullptr : gweight.data(),
                             alias ? nullptr : parts.f32(), s.rows, s.n, count, type, types.weight},
                            launch);
  return alias ? more : gx;
}

TEST(RmsNormBackward, GivesTheSameBitsInPlace) {
  for (const Backend* backend : cpu_backends()) {
    for (const Types& types : kPairs) {
      for (const Shape& s : kShapes) {
        const std::string where = text_of(*backend, types, s);
        const Buffer got = backward(*backend, types, s, false, threaded());
        EXPECT_TRUE(backward(*backend, types, s, true, serial()).same_bits(got)) << where;
      }
    }
  }
}

// The weight's type changes nothing but the rounding of its own gradient.
TEST(RmsNormBackward, AWeightInFloat32GivesTheSameAsItsValuesInBFloat16) {
  for (const Backend* backend : cpu_backends()) {
    const Shape s{37, 67};
    const Type half = Type::kBFloat16, single = Type::kFloat32;
    Buffer x = random(half, s.rows * s.n, 1), gy = random(half, s.rows * s.n, 2);
    const int64_t count = rms_norm_parts(Device::kCpu, s.rows, s.n);
    Buffer w = random(half, s.n, 3), wide(single, s.n), parts(single, count * s.n);
    for (int64_t i = 0; i < s.n; ++i) wide.set(i, w[i]);
    const auto run = [&](Buffer& weight, Buffer& gweight) {
      Buffer y(half, s.rows * s.n), gx(half, s.rows * s.n), rstd(single, s.rows);
      backend->rms_norm(
          {x.data(), weight.data(), y.data(), rstd.f32(), s.rows, s.n, 1e-6f, half, weight.type()},
          serial());
      backend->rms_norm_backward(
          {gy.data(), x.data(), weight.data(), rstd.f32(), nullptr, gx.data(), gweight.data(),
           parts.f32(), s.rows, s.n, count, half, weight.type()},
          serial());
      return std::pair(y, gx);
    };
    Buffer narrow_gradient(half, s.n), wide_gradient(single, s.n), rounded(half, s.n);
    const auto [y, gx] = run(w, narrow_gradient);
    const auto [y_wide, gx_wide] = run(wide, wide_gradient);
    EXPECT_TRUE(y.same_bits(y_wide)) << backend->name;
    EXPECT_TRUE(gx.same_bits(gx_wide)) << backend->name;
    for (int64_t i = 0; i < s.n; ++i) rounded.set(i, wide_gradient[i]);
    EXPECT_TRUE(rounded.same_bits(narrow_gradient)) << backend->name;
  }
}

TEST(RmsNormBackward, IsTheDerivative) {
  const int64_t n = 6;
  const std::vector<float> x = normals(n, 1), w = normals(n, 2), gy = normals(n, 3);
  const auto value = [&](std::vector<double> at) {
    double square = 0, sum = 0;
    for (double v : at) square += v * v;
    for (size_t i = 0; i < at.size(); ++i) sum += gy[i] * w[i] * at[i];
    return sum / std::sqrt(square / n + 1e-6);
  };
  Buffer bx(Type::kFloat32, x), bw(Type::kFloat32, w), bgy(Type::kFloat32, gy);
  Buffer y(Type::kFloat32, n), rstd(Type::kFloat32, 1), gx(Type::kFloat32, n);
  reference_backend.rms_norm(
      {bx.data(), bw.data(), y.data(), rstd.f32(), 1, n, 1e-6f, Type::kFloat32, Type::kFloat32},
      serial());
  reference_backend.rms_norm_backward(
      {bgy.data(), bx.data(), bw.data(), rstd.f32(), nullptr, gx.data(), nullptr, nullptr, 1, n, 1,
       Type::kFloat32, Type::kFloat32},
      serial());
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> up(x.begin(), x.end()), down = up;
    up[static_cast<size_t>(i)] += 1e-5;
    down[static_cast<size_t>(i)] -= 1e-5;
    EXPECT_NEAR(gx[i], (value(up) - value(down)) / 2e-5, 1e-5);
  }
}

}  // namespace
}  // namespace compact::kernels
