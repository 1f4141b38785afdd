// SPDX-License-Identifier: Apache-2.0
// The fold of matrices larger than one block of rows.
#include <gtest/gtest.h>

#include "compact/codecs/blocks.h"
#include "compact/optim/update.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

constexpr int64_t kIn = 1376, kRank = 8, kFoldRows = 2 * (kBlockElements / kIn) + 100;

struct Folded {
  Parameter parameter;
  ParameterState state;
};

Folded make(const std::string& type, std::vector<int64_t> rows, at::ScalarType dtype) {
  auto c = std::make_shared<Carrier>();
  c->rows = std::move(rows);
  c->type = type;
  c->in = kIn;
  c->rank = kRank;
  c->redraw(0, dtype);
  Folded f;
  f.parameter = {.name = "w", .weight = normal({kFoldRows, kIn}, 1).to(dtype), .carrier = c};
  return f;
}

TEST(Fold, BlocksAndGroupsAreOneProduct) {
  for (const ProjectionInfo* info : projections()) {
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{kFoldRows}, {900, kFoldRows - 900}}) {
      Folded f = make(info->name, rows, at::kFloat);
      f.state.parameter = &f.parameter;
      const at::Tensor update = normal({kFoldRows, kRank}, 2, 0.1f),
                       before = f.parameter.weight.clone();
      at::Tensor expected = before * 0.9;
      for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t first = i == 0 ? 0 : rows[0];
        expected.narrow(0, first, rows[i]) +=
            update.narrow(0, first, rows[i]).mm(f.parameter.carrier->projections[i]->matrix().t()) *
            0.25;
      }
      fold_rows(f.state, 0, update, 0.9, 0.25, 7);
      EXPECT_TRUE(at::allclose(f.parameter.weight, expected, 1e-4, 1e-5)) << info->name;
      // Part of the rows, across the border of blocks and groups: the others stay.
      const at::Tensor between = f.parameter.weight.clone();
      fold_rows(f.state, 700, update.narrow(0, 700, 800), 1, 0.25, 7);
      EXPECT_TRUE(at::equal(f.parameter.weight.narrow(0, 0, 700), between.narrow(0, 0, 700)));
      EXPECT_TRUE(at::equal(f.parameter.weight.narrow(0, 1500, kFoldRows - 1500),
                            between.narrow(0, 1500, kFoldRows - 1500)));
      const at::Tensor moved = f.parameter.weight - between;
      const at::Tensor wanted = expected - before * 0.9;
      EXPECT_TRUE(at::allclose(moved.narrow(0, 700, 800), wanted.narrow(0, 700, 800), 1e-3, 1e-5));
    }
  }
}

// Every element has its own random bits: equal rows do not round alike, within a block or across.
TEST(Fold, StochasticBitsDoNotRepeat) {
  Folded f = make("srht", {kFoldRows}, at::kBFloat16);
  f.state.parameter = &f.parameter;
  f.parameter.weight.fill_(1);
  const at::Tensor update = at::full({kFoldRows, kRank}, 1e-3f);
  fold_rows(f.state, 0, update, 1, 1, 7);
  const at::Tensor& w = f.parameter.weight;
  EXPECT_FALSE(at::equal(w[0], w[1]));
  EXPECT_FALSE(at::equal(w[0], w[block_rows(kIn)]));
}

}  // namespace
}  // namespace compact
