// SPDX-License-Identifier: Apache-2.0
// Kernels of the cpu backend really split their work, and the result does not show how.
#include <atomic>

#include "support.h"

namespace compact::kernels {
namespace {

std::atomic<int> ranges{0};

Launch counting() {
  return {.parallel_for = [](int64_t n, int64_t grain, Launch::Body body) {
    for (int64_t i = 0; i < n; i += grain) {
      ++ranges;
      body(i, std::min(n, i + grain));
    }
  }};
}

class Splits : public testing::Test {
 protected:
  const Backend& cpu = backend_for(Device::kCpu);
  void SetUp() override { ranges = 0; }
  void TearDown() override { EXPECT_GE(ranges, 4); }
};

TEST_F(Splits, FastestBackendIsCpu) {
  EXPECT_STREQ(cpu.name, "cpu");
  EXPECT_EQ(backends().back()->device, Device::kMeta);
  ranges = 4;
}

TEST_F(Splits, RmsNorm) {
  Buffer x = random(Type::kFloat32, 256 * 512, 1), w = random(Type::kFloat32, 512, 2);
  Buffer y(Type::kFloat32, x.count()), rstd(Type::kFloat32, 256);
  cpu.rms_norm(
      {x.data(), w.data(), y.data(), rstd.f32(), 256, 512, 1e-6f, Type::kFloat32, Type::kFloat32},
      counting());
}

TEST_F(Splits, SwiGlu) {
  Buffer x = random(Type::kBFloat16, 256 * 512, 1), p(Type::kBFloat16, 256 * 256);
  cpu.swiglu({x.data(), nullptr, p.data(), 256, 256, Type::kBFloat16}, counting());
}

TEST_F(Splits, AdamWAndTheResultIsThatOfOneThread) {
  const int64_t count = 100003;
  Buffer p = random(Type::kBFloat16, count, 1), p1 = random(Type::kBFloat16, count, 1);
  Buffer g = random(Type::kBFloat16, count, 2);
  Buffer m(Type::kBFloat16, std::vector<float>(count)),
      v(Type::kBFloat16, std::vector<float>(count));
  AdamW a{.param = p.data(),
          .grad = g.data(),
          .m = m.data(),
          .v = v.data(),
          .count = count,
          .lr = 0.01f,
          .beta1 = 0.9f,
          .beta2 = 0.999f,
          .eps = 1e-6f,
          .weight_decay = 0,
          .bias1 = 0.1f,
          .bias2 = 0.001f,
          .key = 5,
          .type = Type::kBFloat16,
          .grad_type = Type::kBFloat16,
          .state_type = Type::kBFloat16};
  cpu.adamw(a, counting());
  Buffer m1(Type::kBFloat16, std::vector<float>(count)),
      v1(Type::kBFloat16, std::vector<float>(count));
  a.param = p1.data();
  a.m = m1.data();
  a.v = v1.data();
  cpu.adamw(a, serial());
  EXPECT_TRUE(p.same_bits(p1));
  EXPECT_TRUE(v.same_bits(v1));
}

TEST_F(Splits, Draw) {
  Buffer out(Type::kFloat32, 100000);
  cpu.draw({out.data(), 100000, 1, 1, Distribution::kNormal, Type::kFloat32}, counting());
}

}  // namespace
}  // namespace compact::kernels
