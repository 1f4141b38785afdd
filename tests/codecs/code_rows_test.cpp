// SPDX-License-Identifier: Apache-2.0
// Which elements share a group of codes, against what is counted element by element.
#include "compact/codecs/code_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "compact/codecs/codec.h"

namespace compact {
namespace {

int64_t row_at(const CodeRows& r, int64_t place) {
  const int64_t sample = place / (r.outer * r.rows * r.inner);
  return sample * r.rows + place / r.inner % r.rows;
}

// A view of dimensions in any order, with gaps between them and memory around it.
struct View {
  std::vector<CodedDimension> dimensions;
  int64_t offset = 0, elements = 1;

  explicit View(std::mt19937& random) {
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    for (int64_t d = below(5); d >= 0; --d) {
      const int64_t size = 1 + below(6), whole = below(2) ? size : size + below(4);
      offset += below(whole - size + 1) * elements;
      dimensions.push_back({size, elements, below(2) == 1});
      elements *= whole;
    }
    std::shuffle(dimensions.begin(), dimensions.end(), random);
    if (below(4) == 0) elements += below(9);
    if (below(4) == 0) offset = below(elements);
  }
  // Calls body(place, row) with elements in memory and numbers of rows that they are in.
  template <class Body>
  void for_each(Body body) const {
    std::vector<int64_t> index(dimensions.size());
    for (size_t d = 0; d < index.size();) {
      int64_t place = offset, row = 0;
      for (size_t i = 0; i < index.size(); ++i) {
        place += index[i] * dimensions[i].stride;
        if (dimensions[i].apart) row = row * dimensions[i].size + index[i];
      }
      body(place, row);
      for (d = 0; d < index.size() && ++index[d] == dimensions[d].size; ++d) index[d] = 0;
    }
  }
};

TEST(CodeRows, NoneHasElementsThatAreApart) {
  std::mt19937 random(1);
  int found = 0, samples = 0;
  for (int i = 0; i < 20000; ++i) {
    const View view(random);
    int64_t last = view.offset;
    for (const CodedDimension& d : view.dimensions) last += (d.size - 1) * d.stride;
    if (last >= view.elements) continue;
    const auto rows = rows_apart(view.dimensions, view.offset, view.elements);
    const bool is_dense = view.offset == 0 && last + 1 == view.elements;
    ASSERT_TRUE(rows || !is_dense);
    if (!rows) continue;
    ASSERT_EQ(rows->count() * rows->length(), view.elements);
    std::map<int64_t, int64_t> of;  // the view's row in each row of codes
    view.for_each([&](int64_t place, int64_t row) {
      EXPECT_EQ(of.emplace(row_at(*rows, place), row).first->second, row);
    });
    ++found;
    samples += rows->samples > 1;
  }
  EXPECT_GT(found, 10000);
  EXPECT_GT(samples, 100);
}

TEST(CodeRows, RefineIsWhatIsCounted) {
  std::mt19937 random(2);
  int yes = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto some = [&] {
      CodeRows r{.rows = int64_t{2} << random() % 3, .inner = int64_t{1} << random() % 3};
      r.outer = 96 / (r.rows * r.inner);
      const int64_t samples = 1 + static_cast<int64_t>(random() % 3);
      if (r.outer > samples && r.outer % samples == 0) r.outer /= r.samples = samples;
      return r;
    };
    const CodeRows a = some(), b = some();
    std::map<int64_t, int64_t> of;
    bool refines = true;
    for (int64_t place = 0; place < 96; ++place) {
      refines &= of.emplace(row_at(a, place), row_at(b, place)).first->second == row_at(b, place);
    }
    ASSERT_EQ(a.refine(b), refines)
        << a.samples << " " << a.outer << " " << a.rows << " " << a.inner << ", " << b.samples
        << " " << b.outer << " " << b.rows << " " << b.inner;
    yes += refines;
  }
  EXPECT_GT(yes, 1000);
}

// Rows of very different sizes, wherever their elements lie, in one part of memory or in several.
TEST(CodeRows, RowsOfTheLastDimensionShareNoScale) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {5, 96, 7}, {40, 96, 784}, {3, 1, 64}, {2, 300000, 5}, {300, 9, 1}}) {
      const at::Tensor x = at::randn(sizes).clamp(-4, 4);
      const at::Tensor size =
          at::pow(4.0, at::arange(sizes[0] * sizes[2]).remainder(5)).view({sizes[0], 1, sizes[2]});
      const at::Tensor y = x.mul(size).to(type).transpose(1, 2);
      const CodecPtr codec = make_codec("quantize:bits=8,rounding=nearest,group=64,along=last");
      const Encoded e = codec->encode(y, 1);
      EXPECT_EQ(e.bytes(), codec->bytes(sizes[0] * sizes[2], sizes[1], type));
      EXPECT_EQ(e.bytes(), codec->encode(y.to(at::kMeta), 1).bytes());
      const at::Tensor z = e.restore();
      EXPECT_EQ(z.strides(), y.strides());
      const at::Tensor off = (z - y).to(at::kFloat).abs().transpose(1, 2) / size;
      EXPECT_LT(off.max().item<double>(), 0.036) << at::IntArrayRef(sizes) << c10::toString(type);
    }
  }
}

}  // namespace
}  // namespace compact
