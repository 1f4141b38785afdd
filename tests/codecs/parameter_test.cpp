// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/parameter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {
namespace {

Carrier make(const std::string& type, std::vector<int64_t> rows, at::ScalarType dtype) {
  Carrier c{.rows = std::move(rows), .type = type, .in = 24, .rank = 6, .key = 5};
  c.redraw(0, dtype);
  return c;
}

TEST(Carrier, GradientIsTheWeightsGradientTimesP) {
  for (const ProjectionInfo* info : projections()) {
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{10}, {5, 3, 2}}) {
      const Carrier c = make(info->name, rows, at::kFloat);
      const at::Tensor x = at::randn({2, 7, 24}), gy = at::randn({14, 10});
      const std::vector<at::Tensor> z = c.project(x);
      ASSERT_EQ(z.size(), rows.size());
      const at::Tensor g = c.gradient(gy, z);
      ASSERT_EQ(g.sizes(), at::IntArrayRef({10, 6}));
      const at::Tensor full = gy.t().mm(x.view({14, 24}));
      int64_t row = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const at::Tensor expected = full.narrow(0, row, rows[i]).mm(c.projections[i]->matrix());
        EXPECT_TRUE(at::allclose(g.narrow(0, row, rows[i]), expected, 1e-4, 1e-4)) << info->name;
        row += rows[i];
      }
    }
  }
}

TEST(Carrier, GroupsAndDrawsHaveTheirOwnKeys) {
  for (const ProjectionInfo* info : projections()) {
    Carrier c = make(info->name, {5, 5}, at::kFloat);
    const at::Tensor first = c.projections[0]->matrix();
    EXPECT_FALSE(at::equal(first, c.projections[1]->matrix()));
    c.redraw(3, at::kFloat);
    EXPECT_EQ(c.draw, 3);
    EXPECT_FALSE(at::equal(first, c.projections[0]->matrix()));
    const uint64_t key = derive(derive(5, 3), 1);
    EXPECT_TRUE(at::equal(c.projections[1]->matrix(),
                          make_projection(info->name, 24, 6, key, at::kFloat)->matrix()));
    c.redraw(0, at::kFloat);
    EXPECT_TRUE(at::equal(first, c.projections[0]->matrix()));
    EXPECT_THROW(c.redraw(-1, at::kFloat), InputError);
  }
}

TEST(Carrier, WorksInBf16) {
  const Carrier c = make("srht", {4, 6}, at::kBFloat16);
  const at::Tensor x = at::randn({9, 24}).to(at::kBFloat16),
                   gy = at::randn({9, 10}).to(at::kBFloat16);
  const at::Tensor g = c.gradient(gy, c.project(x));
  EXPECT_EQ(g.scalar_type(), at::kBFloat16);
  const at::Tensor full = gy.to(at::kFloat).t().mm(x.to(at::kFloat));
  const at::Tensor expected = at::cat({full.narrow(0, 0, 4).mm(c.projections[0]->matrix()),
                                       full.narrow(0, 4, 6).mm(c.projections[1]->matrix())});
  EXPECT_LE((g - expected).norm().item<float>(), 0.01 * expected.norm().item<float>());
}

TEST(Carrier, TakesTheSettingsOfAPolicy) {
  const at::Tensor w = at::zeros({12, 20});
  const auto make = [&](const std::string& spec) {
    return make_carrier(Spec::parse(spec), "layers.0.attn.qkv", w, {6, 4, 2}, 9);
  };
  EXPECT_EQ(make("full"), nullptr);
  const auto own =
      make("project:rank=0.25,share=false,period=7,scale=0.5,carry=false,type=gaussian");
  EXPECT_EQ(own->rank, 5);
  EXPECT_EQ(own->rows, (std::vector<int64_t>{6, 4, 2}));
  EXPECT_EQ(own->projections.size(), 3u);
  EXPECT_EQ(own->period, 7);
  EXPECT_EQ(own->scale, 0.5);
  EXPECT_FALSE(own->carry);
  EXPECT_EQ(own->value.sizes(), at::IntArrayRef({12, 5}));
  EXPECT_TRUE(own->value.requires_grad());
  EXPECT_EQ(own->value.abs().max().item<float>(), 0);
  EXPECT_EQ(make("project:rank=8")->projections.size(), 1u);
  // Zeros that take the memory of one, unless they are to have their own.
  EXPECT_EQ(own->value.storage().nbytes(), 4u);
  const auto dense = make("project:rank=5,dense=true");
  EXPECT_EQ(dense->value.storage().nbytes(), 12u * 5 * 4);
  EXPECT_TRUE(dense->value.is_contiguous() && dense->value.requires_grad());
  EXPECT_EQ(dense->value.abs().max().item<float>(), 0);
  EXPECT_THAT([&] { make("project:rank=21"); },
              testing::ThrowsMessage<InputError>(testing::AllOf(
                  testing::HasSubstr("layers.0.attn.qkv"), testing::HasSubstr("21"))));
}

}  // namespace
}  // namespace compact
