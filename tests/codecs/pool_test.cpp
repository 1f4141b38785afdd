// SPDX-License-Identifier: Apache-2.0
// Means over windows beside loops over every window and element.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/codec.h"

namespace compact {
namespace {

at::Tensor normal_maps(at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(3));
}

struct Axis {
  int64_t length, size, stride;
  int64_t windows() const {
    int64_t n = 1;
    while ((n - 1) * stride + size < length && n * stride < length) ++n;
    return n;
  }
  int64_t window_of(int64_t p) const { return std::min(p / stride, windows() - 1); }
  int64_t end(int64_t w) const { return std::min(w * stride + size, length); }
};

// The values that the map [height, width] reads back as.
at::Tensor by_loops(const at::Tensor& map, int64_t size, int64_t stride) {
  const Axis rows{map.size(0), size, stride}, columns{map.size(1), size, stride};
  at::Tensor out = at::empty_like(map);
  for (int64_t i = 0; i < map.size(0); ++i) {
    for (int64_t j = 0; j < map.size(1); ++j) {
      const int64_t r = rows.window_of(i), c = columns.window_of(j);
      out[i][j] = map.slice(0, r * stride, rows.end(r)).slice(1, c * stride, columns.end(c)).mean();
    }
  }
  return out;
}

TEST(Pool, ReadsBackTheMeanOfEachWindow) {
  struct Case {
    int64_t height, width, size, stride;
  };
  for (const Case& c : {Case{8, 8, 2, 2},
                        {7, 5, 2, 2},
                        {7, 9, 3, 3},
                        {3, 2, 4, 4},
                        {1, 2, 3, 1},
                        {82, 82, 41, 41},
                        {1, 1, 2, 2},
                        {9, 8, 3, 2},
                        {10, 7, 2, 3},
                        {9, 9, 4, 1},
                        {6, 6, 1, 1}}) {
    const std::string text = cat("pool:size=", c.size, ",stride=", c.stride);
    const CodecPtr codec = make_codec(text);
    const at::Tensor x = normal_maps({2, 3, c.height, c.width});
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const at::Tensor laid = x.contiguous(format);
      const Encoded e = codec->encode(laid, 0);
      const at::Tensor y = e.restore();
      EXPECT_EQ(y.strides(), laid.strides()) << text;
      for (int64_t n = 0; n < 2; ++n) {
        for (int64_t k = 0; k < 3; ++k) {
          EXPECT_TRUE(at::allclose(y[n][k], by_loops(x[n][k], c.size, c.stride), 1e-5, 1e-6))
              << text << " on " << c.height << " x " << c.width;
        }
      }
      const Axis rows{c.height, c.size, c.stride}, columns{c.width, c.size, c.stride};
      EXPECT_EQ(e.bytes(), 2 * 3 * 4 * rows.windows() * columns.windows()) << text;
    }
  }
}

TEST(Pool, TakesOneToThreeAxesAndShortTypes) {
  const CodecPtr codec = make_codec("pool:size=2");
  const at::Tensor line = normal_maps({2, 3, 7});
  const at::Tensor map =
      codec->encode(line.unsqueeze(2).expand({2, 3, 2, 7}).contiguous(), 0).restore();
  EXPECT_TRUE(codec->encode(line, 0).restore().allclose(map.select(2, 0)));
  const at::Tensor block = normal_maps({2, 3, 1, 5, 7});
  EXPECT_TRUE(codec->encode(block, 0).restore().allclose(
      codec->encode(block.squeeze(2), 0).restore().unsqueeze(2)));
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = normal_maps({1, 2, 4, 4}).to(type);
    const at::Tensor y = codec->encode(x, 0).restore();
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(
        y.to(at::kFloat).allclose(codec->encode(x.to(at::kFloat), 0).restore(), 1e-2, 1e-2));
  }
}

// A map that is constant over windows comes back bit for bit, and so it does from means in 8 bits
// where they are two values.
TEST(Pool, ConstantWindowsComeBackAndChainsHold) {
  const at::Tensor coarse = normal_maps({2, 3, 4, 4});
  const at::Tensor x = coarse.repeat_interleave(2, 2).repeat_interleave(2, 3);
  EXPECT_TRUE(make_codec("pool:size=2")->encode(x, 0).restore().equal(x));
  const CodecPtr chain = make_codec("pool:size=2+quantize:bits=4");
  const Encoded e = chain->encode(x, 7);
  EXPECT_EQ(e.bytes(), make_codec("quantize:bits=4")->encode(coarse, 7).bytes());
  const at::Tensor means = e.decode_means(e.parts);
  EXPECT_EQ(means.sizes(), coarse.sizes());
  EXPECT_LT((means - coarse).abs().max().item<float>(), 0.5);
  EXPECT_TRUE(e.restore().equal(means.repeat_interleave(2, 2).repeat_interleave(2, 3)));
  EXPECT_EQ(e.windows.size, 2);
}

TEST(Pool, RefusesWhatItCannotHave) {
  for (const char* text : {"pool:size=0", "pool:size=65", "pool:stride=0", "pool:of=max"}) {
    EXPECT_THROW(make_codec(text), InputError) << text;
  }
  const CodecPtr codec = make_codec("pool:size=2");
  EXPECT_THROW(codec->encode(at::zeros({2, 2}), 0), InputError);
  EXPECT_THROW(codec->encode(at::zeros({2, 2, 2}, at::kLong), 0), InputError);
  EXPECT_FALSE(codec->takes(at::zeros({2, 0, 4, 4})));
  EXPECT_EQ(content_of({Spec::parse("pool:size=2")}), Content::kRounded);
}

}  // namespace
}  // namespace compact
