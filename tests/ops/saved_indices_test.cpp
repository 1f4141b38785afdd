// SPDX-License-Identifier: Apache-2.0
// Indices that operations save take the bits of what they count.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "compact/ops/scopes/saved_tensors.h"

namespace compact {
namespace {

const Policy kLossless = Policy::parse("slot * = keep\n", "test");

// How what `body` saves is held, and how often.
template <class Body>
std::map<std::string, int> held_by(const at::Tensor& parameter, Body body) {
  SavedTensorScope scope(kLossless, {.parameters = {{"table", parameter}}, .least_elements = 1});
  body().sum().backward();
  std::map<std::string, int> seen;
  for (const SavedTensor& t : scope.report().tensors) {
    ++seen[t.treatment.text()];
    if (t.treatment.codec()) {
      EXPECT_EQ(t.stored * 8, t.bytes) << t.name;
    }
  }
  return seen;
}

// A table that is wider than it is long: of places there are as many as rows.
TEST(SavedIndices, TakeTheBitsOfTheTablesRows) {
  const at::Tensor table = at::ones({100, 400}).requires_grad_();
  const at::Tensor ids = at::arange(64).remainder(100);
  EXPECT_EQ(held_by(table, [&] { return at::embedding(table, ids); })["index:limit=100"], 1);
}

TEST(SavedIndices, TakeTheBitsOfTheirDimension) {
  const at::Tensor x = at::ones({200, 70}).requires_grad_(), places = at::arange(64);
  auto seen = held_by(x, [&] {
    return x.index_select(1, places.clone()).sum() + x.index_select(0, places.clone()).sum() +
           x.gather(-1, places.expand({2, 64}).contiguous()).sum();
  });
  EXPECT_EQ(seen["index:limit=70"], 2);
  EXPECT_EQ(seen["index:limit=200"], 1);
}

}  // namespace
}  // namespace compact
