// SPDX-License-Identifier: Apache-2.0
// The lossless codecs, chains, and what holds of every codec in the table.
#include "compact/codecs/codec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor normal(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(3), at::kFloat).to(type);
}
// Bit for bit, layout included.
void expect_lossless(const std::string& codec, const at::Tensor& x) {
  const CodecPtr c = make_codec(codec);
  ASSERT_TRUE(c->takes(x)) << codec << " " << x.sizes() << x.scalar_type();
  const Encoded e = c->encode(x, 1);
  const at::Tensor y = e.restore();
  EXPECT_EQ(y.scalar_type(), x.scalar_type());
  EXPECT_TRUE(at::equal(y.isnan(), x.isnan()) && at::equal(y.nan_to_num(), x.nan_to_num()));
  if (x.is_non_overlapping_and_dense()) {
    EXPECT_EQ(y.strides(), x.strides());
  }
  const auto bytes = c->bytes(1, x.numel(), x.scalar_type());
  EXPECT_EQ(e.bytes(), bytes.value_or(e.bytes()));
}

// Tensors of all kinds, of which a codec takes some.
std::vector<at::Tensor> samples() {
  std::vector<at::Tensor> all;
  for (const at::IntArrayRef sizes : std::vector<at::IntArrayRef>{
           {}, {0}, {1}, {5}, {3, 7}, {16, 256}, {512, 1024}, {2, 3, 8, 8}}) {
    const at::Tensor x = normal(sizes);
    for (const at::Tensor& t : {x, x.relu(), x.gt(0).to(at::kFloat), x.mul(10).to(at::kLong)}) {
      for (const at::ScalarType type :
           {at::kFloat, at::kBFloat16, at::kHalf, at::kBool, at::kLong}) {
        all.push_back(t.to(type));
        if (t.dim() == 2) all.push_back(t.to(type).t());
      }
    }
  }
  return all;
}

bool same(const at::Tensor& x, const at::Tensor& y) {
  return x.scalar_type() == y.scalar_type() && at::equal(x, y);
}

// The promises of every row of the table.
TEST(Codecs, EveryOneKeepsItsPromises) {
  for (const CodecInfo* info : codecs()) {
    SCOPED_TRACE(info->name);
    const CodecPtr codec = make_codec(info->name);
    int taken = 0, sizes_known = 0, planned_too = 0;
    for (const at::Tensor& x : samples()) {
      SCOPED_TRACE(testing::Message() << x.scalar_type() << x.sizes() << x.strides());
      if (!codec->takes(x)) {
        EXPECT_THROW(codec->encode(x, 1), InputError);
        continue;
      }
      ++taken;
      sizes_known += codec->bytes(1, x.numel(), x.scalar_type()).has_value();
      const at::Tensor before = x.clone();
      const Encoded e = codec->encode(x, 1);
      const at::Tensor y = e.restore();
      EXPECT_TRUE(same(x, before)) << "what was encoded has changed";
      EXPECT_EQ(y.scalar_type(), x.scalar_type());
      EXPECT_EQ(y.sizes(), x.sizes());
      if (x.is_non_overlapping_and_dense()) {
        EXPECT_EQ(y.strides(), x.strides());
      }
      if (x.dim() == 2 && x.is_contiguous()) {
        const auto bytes = codec->bytes(x.size(0), x.size(1), x.scalar_type());
        EXPECT_EQ(e.bytes(), bytes.value_or(e.bytes()));
      }
      switch (info->content(Spec::parse_chain(info->name)[0])) {
        case Content::kExact:
          EXPECT_TRUE(same(x, y));
          break;
        case Content::kSigns:
          EXPECT_TRUE(at::equal(x.gt(0), y.gt(0)));
          break;
        case Content::kRounded:
          if (x.numel() >= 64) {  // few values may all be 0, or all rounded up
            EXPECT_LE((y - x).to(at::kDouble).norm().item<double>(),
                      0.95 * x.to(at::kDouble).norm().item<double>());
          }
          break;
      }
      const int threads = at::get_num_threads();
      for (const int other : {1, 3}) {
        at::set_num_threads(other);
        EXPECT_TRUE(same(codec->encode(x, 1).restore(), y)) << "the key says all random bits";
      }
      at::set_num_threads(threads);
      // Plans run the same on tensors without values.
      const at::Tensor meta = x.to(at::kMeta);
      if (!codec->takes(meta)) continue;
      ++planned_too;
      const Encoded planned = codec->encode(meta, 1);
      EXPECT_EQ(planned.restore().sizes(), x.sizes());
      if (codec->bytes(1, x.numel(), x.scalar_type())) {
        EXPECT_EQ(planned.bytes(), e.bytes());
      }
    }
    EXPECT_GT(taken, 0);
    EXPECT_TRUE(planned_too > 0 || sizes_known == 0);
  }
}

TEST(Codecs, BudgetsMayTryTheirChoicesOnEveryFloat) {
  for (const CodecChoice& choice : codec_choices()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::Tensor& x :
           {normal({5}, type), normal({3, 7}, type), normal({2, 3, 8, 8}, type)}) {
        EXPECT_TRUE(make_codec(choice.spec)->takes(x)) << choice.spec << type << x.sizes();
      }
    }
  }
}

TEST(Mask, HoldsTwoValuesInABit) {
  for (const int64_t count : {0, 1, 7, 8, 17, 16384, 16385, 100003}) {
    const at::Tensor mask = normal({count}).gt(0.3);
    expect_lossless("mask", mask);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kByte, at::kInt}) {
      expect_lossless("mask", mask.to(type) * 3);
    }
  }
  // Dropout's noise, an attention mask, the same value everywhere, a late second value.
  expect_lossless("mask", normal({50, 60}).gt(0).to(at::kFloat) / 0.9);
  expect_lossless("mask", at::zeros({64, 64}).masked_fill(normal({64, 64}).gt(0), -INFINITY));
  expect_lossless("mask", at::full({100}, NAN));
  at::Tensor late = at::zeros({9000});
  late[8000] = 1;
  expect_lossless("mask", late);
  expect_lossless("mask", normal({6, 5}).gt(0).t());
  EXPECT_EQ(make_codec("mask")->encode(at::ones({1000}, at::kBool), 1).bytes(), 125);
}

TEST(Mask, RefusesThreeValues) {
  const CodecPtr mask = make_codec("mask");
  EXPECT_FALSE(mask->takes(normal({10})));
  EXPECT_FALSE(mask->takes(at::arange(3).to(at::kFloat)));
  at::Tensor late = normal({20000}).gt(0).to(at::kFloat);
  late[15000] = 0.5;
  EXPECT_FALSE(mask->takes(late));
  EXPECT_THROW(mask->encode(late, 1), InputError);
  EXPECT_FALSE(mask->takes(at::ones({4}, at::kLong)));
}

TEST(Mask, SignIsWhatAReluAsks) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor x = normal({1003}, type).relu();
    x[5] = INFINITY;
    x[6] = NAN;
    x[7] = -0.0;
    x[8] = type == at::kHalf ? 6e-8 : 1e-39;
    const at::Tensor got = make_codec("mask:of=sign")->encode(x, 1).restore();
    EXPECT_TRUE(at::equal(got.gt(0), x.gt(0))) << c10::toString(type);
  }
}

TEST(Index, TakesTheFewestBytes) {
  const CodecPtr index = make_codec("index");
  for (const auto& [high, size] : {std::pair<int64_t, int64_t>{255, 1},
                                   {256, 2},
                                   {32767, 2},
                                   {32768, 4},
                                   {int64_t{1} << 40, 8}}) {
    at::Tensor x = at::arange(100).remainder(7);
    x[50] = high;
    expect_lossless("index", x);
    EXPECT_EQ(index->encode(x, 1).bytes(), 100 * size) << high;
  }
  expect_lossless("index", -at::arange(300));
  expect_lossless("index", at::empty({0}, at::kLong));
  expect_lossless("index:limit=1000", at::arange(1000));
  EXPECT_EQ(make_codec("index:limit=256")->bytes(1, 10, at::kLong), 10);
}

TEST(Offload, GivesBackTheSame) {
  expect_lossless("offload", normal({3, 4}).t());
  expect_lossless("offload", normal({3, 4}, at::kBFloat16));
  expect_lossless("offload", normal({3, 4, 5}).slice(2, 0, 5, 2));
}

TEST(Chain, IsTheLastOfTheFirst) {
  const at::Tensor x = normal({10, 100});
  const Encoded plain = make_codec("quantize:bits=4")->encode(x, 9);
  const Encoded moved = make_codec("quantize:bits=4+offload")->encode(x, 9);
  EXPECT_TRUE(at::equal(moved.restore(), plain.restore()));
  EXPECT_EQ(moved.bytes(), plain.bytes());
  EXPECT_EQ(make_codec("quantize:bits=4+offload")->bytes(10, 100, at::kFloat), plain.bytes());
  // Parts that a codec does not take stay as they are.
  EXPECT_TRUE(
      at::equal(make_codec("quantize:bits=4+index")->encode(x, 9).restore(), plain.restore()));
}

// A tensor held by `offload` is still on its way from a GPU: nothing may read it there.
TEST(Chain, EndsWithOffload) {
  for (const char* chain : {"offload+quantize:bits=4", "offload+offload", "offload+mask",
                            "quantize:bits=4+offload+index"}) {
    EXPECT_THAT([&] { make_codec(chain); },
                ThrowsMessage<InputError>(
                    testing::AllOf(HasSubstr(chain), HasSubstr("`offload` must be the last"))));
  }
}

// The functions of a codec's row by which plans and probes get it in fewer bits.
TEST(Codecs, HaveTheBitsThatTheyOffer) {
  int several = 0;
  for (const CodecInfo* info : codecs()) {
    if (!info->bits) continue;
    const Spec spec = Spec::parse(info->name);
    const CodecBits usual = info->bits(spec);
    EXPECT_FALSE(usual.average);
    EXPECT_TRUE(std::ranges::count(usual.choices, usual.bits) == 1);
    int64_t before = 0;
    for (const int bits : usual.choices) {
      const Spec other = info->with_bits(spec, bits, std::nullopt);
      EXPECT_EQ(info->bits(other).bits, bits);
      EXPECT_FALSE(info->bits(other).average);
      EXPECT_EQ(info->bits(info->with_bits(spec, bits, 1.5)).average, 1.5);
      const auto bytes = make_codec({other})->bytes(8, 1024, at::kFloat);
      ASSERT_TRUE(bytes);
      EXPECT_GT(*bytes, before);
      before = *bytes;
    }
    if (info->with_signs) {
      const std::optional<Spec> signs = info->with_signs(spec);
      ASSERT_TRUE(signs);
      EXPECT_TRUE(info->bits(*signs).zero_code);
      for (const int bits : info->bits(*signs).choices) {
        make_codec({info->with_bits(*signs, bits, std::nullopt)});
      }
    }
    ++several;
  }
  EXPECT_GT(several, 0);
  const auto choices = [](const char* spec) {
    return find_codec("quantize")->bits(Spec::parse(spec)).choices;
  };
  EXPECT_EQ(choices("quantize:levels=lloyd"), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(choices("quantize:levels=positive"), (std::vector<int>{2, 4, 8}));
}

TEST(Codecs, AllAreListedAndTheirDefaultsWork) {
  for (const CodecInfo* info : codecs()) {
    EXPECT_EQ(find_codec(info->name), info);
    EXPECT_FALSE(info->summary.empty());
    EXPECT_THROW(make_codec(info->name + ":nonsense=1"), InputError);
    make_codec(info->name);
    ASSERT_TRUE(info->content);
    EXPECT_EQ(info->bits == nullptr, info->with_bits == nullptr) << info->name;
  }
  EXPECT_THAT([] { make_codec("quantise"); },
              ThrowsMessage<InputError>(HasSubstr("did you mean `quantize`")));
}

}  // namespace
}  // namespace compact
