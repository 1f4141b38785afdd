// SPDX-License-Identifier: Apache-2.0
// Quantizers against theory: bias and mean squared error, with stated confidence.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/codecs/codec.h"

namespace compact {
namespace {

at::Tensor normal_values(at::IntArrayRef sizes, uint64_t seed, at::ScalarType type = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kFloat).to(type);
}
at::Tensor through(const std::string& codec, const at::Tensor& x, uint64_t key = 1) {
  return make_codec(codec)->encode(x, key).restore();
}
double relative_error(const at::Tensor& got, const at::Tensor& x) {
  const at::Tensor d = x.to(at::kDouble);
  return ((got.to(at::kDouble) - d).square().sum() / d.square().sum()).item<double>();
}

struct Case {
  int bits;
  const char *rounding, *levels, *scale;
  at::ScalarType type;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int bits : {1, 2, 4, 8}) {
    for (const char* rounding : {"nearest", "stochastic"}) {
      for (const char* levels : {"uniform", "lloyd"}) {
        if (bits == 8 && std::string(levels) == "lloyd") continue;
        for (const char* scale : {"f32", "bf16"}) {
          for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
            all.push_back({bits, rounding, levels, scale, type});
          }
        }
      }
    }
  }
  return all;
}
std::string text_of(const Case& c, int group = 256) {
  return cat("quantize:bits=", c.bits, ",group=", group, ",rounding=", c.rounding,
             ",levels=", c.levels, ",scale=", c.scale);
}

TEST(Quantize, TakesTheBytesItSays) {
  for (const Case& c : cases()) {
    for (const int group : {32, 64, 256, 2048}) {
      for (const char* along : {"memory", "last"}) {
        const CodecPtr codec = make_codec(text_of(c, group) + ",along=" + along);
        for (const auto& [rows, n] :
             {std::pair<int64_t, int64_t>{1, 1}, {3, 256}, {5, 1000}, {0, 7}}) {
          const Encoded e = codec->encode(normal_values({rows, n}, 3, c.type), 1);
          EXPECT_EQ(e.bytes(), codec->bytes(rows, n, c.type)) << text_of(c, group);
          EXPECT_EQ(e.restore().sizes(), at::IntArrayRef({rows, n}));
          EXPECT_EQ(e.restore().scalar_type(), c.type);
        }
      }
    }
  }
  // 256 values in 4 bits, offset and step in bf16.
  EXPECT_EQ(make_codec("quantize:bits=4")->bytes(2, 256, at::kFloat), 2 * (128 + 4));
  EXPECT_EQ(make_codec("quantize:bits=1,scale=f32")->bytes(1, 256, at::kFloat), 32 + 8);
}

// The mean over 4,000 keys of each of 512 values lies within six standard errors of the value, of
// which a normal exceeds one in a billion; the variance is at most a quarter of a step squared.
TEST(Quantize, StochasticRoundingIsUnbiased) {
  constexpr int kKeys = 4000;
  for (const Case& c : cases()) {
    if (std::string(c.rounding) != "stochastic" || c.type == at::kHalf) continue;
    const at::Tensor x = normal_values({512}, 5, c.type);
    const CodecPtr codec = make_codec(text_of(c));
    at::Tensor sum = at::zeros({512}, at::kDouble);
    at::Tensor squares = at::zeros({512}, at::kDouble);
    for (int k = 0; k < kKeys; ++k) {
      const at::Tensor y = codec->encode(x, static_cast<uint64_t>(k)).restore().to(at::kDouble);
      sum += y;
      squares += y.square();
    }
    const at::Tensor mean = sum / kKeys, variance = (squares / kKeys - mean.square()).clamp_min(0);
    // The rounding of a read-back value to its own type.
    const double unit = c.type == at::kBFloat16 ? std::exp2(-8) : std::exp2(-23);
    const at::Tensor bound =
        6 * (variance / kKeys).sqrt() + (x.to(at::kDouble).abs() + 0.1) * unit + std::exp2(-16) * 4;
    const at::Tensor off = (mean - x.to(at::kDouble)).abs();
    EXPECT_TRUE((off <= bound).all().item<bool>())
        << text_of(c) << " " << (off / bound).max().item<double>();
  }
}

// E(x' - x)^2 of a uniform quantizer, from the range of each group: step^2 f (1 - f) where rounding
// is stochastic (f: the fraction of a step that x lies above a level), step^2 min(f, 1 - f)^2 to
// nearest. 262,144 values: within 2 %.
TEST(Quantize, UniformErrorIsThatOfTheory) {
  const at::Tensor x = normal_values({1024, 256}, 7), low = x.amin(1, true), high = x.amax(1, true);
  for (const int bits : {1, 2, 4, 8}) {
    const double top = (1 << bits) - 1;
    const at::Tensor step = ((high - low) / top).to(at::kDouble);
    const at::Tensor t = (x - low).to(at::kDouble) / step, f = t - t.floor();
    for (const bool nearest : {false, true}) {
      const at::Tensor error = nearest ? at::min(f, 1 - f).square() : f * (1 - f);
      const double want = (error * step.square()).sum().item<double>() /
                          x.to(at::kDouble).square().sum().item<double>();
      const std::string codec =
          cat("quantize:scale=f32,bits=", bits, ",rounding=", nearest ? "nearest" : "stochastic");
      EXPECT_NEAR(relative_error(through(codec, x), x) / want, 1, 0.02) << codec;
    }
  }
}

// The errors that plans weigh against time are the measured ones.
TEST(Quantize, BudgetsKnowTheErrorOfTheirChoices) {
  const at::Tensor x = normal_values({1 << 20}, 5);
  const std::span<const CodecChoice> choices = codec_choices();
  ASSERT_EQ(choices.size(), 3);
  for (const CodecChoice& choice : choices) {
    EXPECT_NEAR(relative_error(through(choice.spec, x), x) / choice.error, 1, 0.05) << choice.spec;
  }
}

// Lloyd's levels on normal values have the published relative errors; the mean and deviation of 256
// values cost about 1 %.
TEST(Quantize, LloydLevelsHaveTheLeastError) {
  const at::Tensor x = normal_values({1024, 256}, 8);
  for (const auto& [bits, want] : {std::pair{1, 0.3634}, {2, 0.1175}, {4, 0.00950}}) {
    const std::string codec = cat("quantize:levels=lloyd,rounding=nearest,bits=", bits);
    EXPECT_NEAR(relative_error(through(codec, x), x) / want, 1, 0.03) << codec;
  }
}

TEST(Quantize, ErrorFallsWithGroupAndBits) {
  const at::Tensor x = normal_values({512, 512}, 9);
  // Published for normal values in groups of 256: 0.598 and 0.0238; in groups of 64 0.403.
  EXPECT_NEAR(relative_error(through("quantize:bits=2", x), x), 0.598, 0.02);
  EXPECT_NEAR(relative_error(through("quantize:bits=2,group=64", x), x), 0.403, 0.02);
  EXPECT_NEAR(relative_error(through("quantize:bits=4", x), x), 0.0238, 0.001);
}

TEST(Quantize, ReadsAnyLayoutAndKeepsIt) {
  const at::Tensor x = normal_values({4, 6, 5, 7}, 10);
  const std::string codec = "quantize:bits=8,group=32";
  const at::Tensor want = through(codec, x);
  const at::Tensor last = x.to(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& y :
       {last, x.permute({3, 1, 0, 2}), x.slice(3, 0, 7, 2), x.transpose(0, 1), x.flatten(),
        x.expand({2, 4, 6, 5, 7}), at::scalar_tensor(3.0), at::empty({0, 3})}) {
    for (const char* along : {"memory", "last", "channels"}) {
      const at::Tensor got = through(codec + ",along=" + along, y);
      ASSERT_EQ(got.sizes(), y.sizes());
      EXPECT_TRUE(at::allclose(got, y, 0, 0.03)) << y.sizes() << along;
    }
  }
  EXPECT_EQ(through(codec, last).strides(), last.strides());
  EXPECT_TRUE(at::equal(through(codec, x.flatten()).view_as(x), want));
}

// Channels of very different sizes, in one part of memory or in several.
TEST(Quantize, GroupsAlongChannelsDoNotMixThem) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{300, 6},
                                                                               {5, 6, 7},
                                                                               {5, 6, 7, 9},
                                                                               {3, 6, 16, 16},
                                                                               {1, 6, 5, 5},
                                                                               {70000, 24},
                                                                               {40, 24, 37, 35}}) {
      const int64_t channels = sizes[1];
      std::vector<int64_t> along(sizes.size(), 1);
      along[1] = channels;
      const at::Tensor size =
          at::pow(at::full({}, 0.05), at::arange(channels).remainder(6).div(2, "floor"))
              .view(along);
      at::Tensor x = normal_values(sizes, 21).clamp(-4, 4).mul(size).to(type);
      for (const bool last : {false, true}) {
        if (last) x = x.movedim(1, -1).contiguous().movedim(-1, 1);
        const CodecPtr codec =
            make_codec("quantize:bits=8,rounding=nearest,group=64,along=channels");
        const Encoded e = codec->encode(x, 1);
        const int64_t n = x.numel() / channels;
        EXPECT_EQ(e.bytes(), channels * (n + (n + 63) / 64 * 4));
        EXPECT_EQ(e.bytes(), codec->bytes(channels, n, type));
        EXPECT_EQ(e.bytes(), codec->encode(x.to(at::kMeta), 1).bytes());
        const at::Tensor y = e.restore();
        EXPECT_EQ(y.strides(), x.strides());
        EXPECT_LT(((y - x).to(at::kFloat).abs() / size).max().item<double>(), 0.036)
            << at::IntArrayRef(sizes) << c10::toString(type) << last;
      }
    }
  }
}

TEST(Quantize, NotANumberStaysInItsGroup) {
  for (const Case& c : cases()) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      at::Tensor x = normal_values({768}, 11, c.type);
      x[300] = bad;
      const at::Tensor y = through(text_of(c), x);
      EXPECT_TRUE(y.slice(0, 256, 512).isnan().all().item<bool>()) << text_of(c);
      EXPECT_FALSE(y.slice(0, 0, 256).isnan().any().item<bool>()) << text_of(c);
      EXPECT_FALSE(y.slice(0, 512).isnan().any().item<bool>()) << text_of(c);
    }
  }
}

TEST(Quantize, ConstantsAndZerosAreExact) {
  for (const float value : {0.0f, -3.5f, 1e-30f}) {
    const at::Tensor x = at::full({300}, value);
    EXPECT_TRUE(at::equal(through("quantize:bits=2,scale=f32", x), x)) << value;
  }
  // A zero that is the least value of its group stays one: what a ReLU leaves.
  const at::Tensor x = normal_values({4096}, 12).relu();
  EXPECT_TRUE((through("quantize:bits=4", x).masked_select(x.eq(0)).eq(0)).all().item<bool>());
}

// Zeros stay zeros and nothing else becomes one, so that a ReLU's mask can be read from the codes;
// the mean over 2,000 keys lies within six standard errors and 1/900 of a step.
TEST(Quantize, PositiveLevelsKeepAReluMask) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int bits : {2, 4, 8}) {
      const at::Tensor x = normal_values({4096}, 14, type).relu();
      for (const char* rounding : {"nearest", "stochastic"}) {
        const at::Tensor y =
            through(cat("quantize:levels=positive,bits=", bits, ",rounding=", rounding), x);
        EXPECT_TRUE(at::equal(y.gt(0), x.gt(0))) << bits << rounding << c10::toString(type);
        EXPECT_TRUE(at::equal(y.eq(0), x.eq(0))) << bits << rounding;
      }
    }
  }
  constexpr int kKeys = 2000;
  const at::Tensor x = normal_values({512}, 15).relu();
  at::Tensor sum = at::zeros({512}, at::kDouble), squares = at::zeros({512}, at::kDouble);
  const CodecPtr codec = make_codec("quantize:levels=positive,bits=2");
  for (int k = 0; k < kKeys; ++k) {
    const at::Tensor y = codec->encode(x, static_cast<uint64_t>(k)).restore().to(at::kDouble);
    sum += y;
    squares += y.square();
  }
  const at::Tensor mean = sum / kKeys, variance = (squares / kKeys - mean.square()).clamp_min(0);
  const double step = x.max().item<double>() / 2;
  EXPECT_TRUE(((mean - x).abs() <= 6 * (variance / kKeys).sqrt() + step / 900).all().item<bool>());
}

TEST(Quantize, BitsComeFromTheKeyAlone) {
  const at::Tensor x = normal_values({100000}, 13);
  const int threads = at::get_num_threads();
  const at::Tensor first = through("quantize", x, 7);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(through("quantize", x, 7), first));
  at::set_num_threads(threads);
  EXPECT_FALSE(at::equal(through("quantize", x, 8), first));
}

TEST(Quantize, RefusesWhatItCannotDo) {
  for (const char* bad : {"quantize:bits=3", "quantize:bits=0", "quantize:group=100",
                          "quantize:group=16", "quantize:group=4096", "quantize:rounding=up",
                          "quantize:levels=lloyd,bits=8", "quantize:levels=positive,bits=1",
                          "quantize:scale=f16", "quantize:bit=4", "quantize:along=rows"}) {
    EXPECT_THROW(make_codec(bad), InputError) << bad;
  }
  EXPECT_THROW(through("quantize", at::ones({3}, at::kLong)), InputError);
}

}  // namespace
}  // namespace compact
