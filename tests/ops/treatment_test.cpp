// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy/treatment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Treatments, EveryOneInTheTableIsAccepted) {
  for (const TreatmentInfo& t : treatments()) {
    EXPECT_NO_THROW(check_treatment(t.kind, {Spec::parse(t.name)})) << t.name;
    EXPECT_FALSE(t.summary.empty());
    if (t.kind != PolicyKind::kSlot) continue;
    EXPECT_EQ(Treatment::parse(t.name).storage(), t.storage);
    EXPECT_EQ(Treatment::parse(t.name).codec(), nullptr);
  }
  EXPECT_EQ(Treatment().text(), "keep");
  EXPECT_EQ(Treatment(), Treatment::parse("keep"));
}

TEST(Treatments, HoldWhatCodecsLeave) {
  const std::pair<const char*, Content> all[] = {{"keep", Content::kExact},
                                                 {"recompute", Content::kExact},
                                                 {"offload", Content::kExact},
                                                 {"mask+offload", Content::kExact},
                                                 {"quantize:bits=4+offload", Content::kRounded},
                                                 {"pool:size=2", Content::kRounded},
                                                 {"pool:size=2+mask:of=sign", Content::kSigns},
                                                 {"mask:of=sign", Content::kSigns}};
  for (const auto& [text, content] : all) {
    const Treatment t = Treatment::parse(text);
    EXPECT_EQ(t.content(), content) << text;
    EXPECT_EQ(t.codec() != nullptr, t.storage() == Storage::kCodec) << text;
    EXPECT_EQ(t.text(), text);
  }
}

TEST(Treatments, TellSigns) {
  const auto with_signs = [](const char* text) {
    const std::optional<Treatment> t = Treatment::parse(text).with_signs();
    return t ? t->text() : "none";
  };
  EXPECT_EQ(with_signs("offload"), "offload");
  EXPECT_EQ(with_signs("mask:of=sign"), "mask:of=sign");
  EXPECT_EQ(with_signs("quantize+offload"), "quantize:levels=positive+offload");
  EXPECT_EQ(with_signs("quantize:bits=1"), "none");
  EXPECT_EQ(with_signs("pool:size=2+quantize:bits=4"), "none");
  EXPECT_EQ(Treatment::parse("quantize+offload").beginning_with(Spec::parse("mask")).text(),
            "mask+offload");
  EXPECT_EQ(Treatment::parse("recompute").beginning_with(Spec::parse("mask")).text(), "mask");
}

TEST(Treatments, HaveBitsWhereTheirFirstCodecHas) {
  const Treatment t = Treatment::parse("quantize:bits=8,adapt=3,levels=positive+offload");
  ASSERT_TRUE(t.bits());
  EXPECT_EQ(t.bits()->bits, 8);
  EXPECT_EQ(t.bits()->average, 3);
  EXPECT_EQ(t.bits()->choices, (std::vector<int>{2, 4, 8}));
  EXPECT_TRUE(t.bits()->zero_code);
  EXPECT_EQ(t.with_bits(2).text(), "quantize:bits=2,adapt=3,levels=positive+offload");
  for (const char* none : {"keep", "recompute", "offload", "pool:size=2+quantize:bits=4"}) {
    EXPECT_FALSE(Treatment::parse(none).bits()) << none;
  }
}

TEST(Treatments, OnesThatCannotBe) {
  const std::pair<const char*, const char*> all[] = {
      {"recompte", "did you mean `recompute`"},
      {"quantise", "did you mean `quantize`"},
      {"quantize:bits=3", "quantize:bits"},
      {"keep:bits=4", "bits"},
      {"recompute+offload", "only codecs of slots are joined"},
      {"offload+quantize:bits=4", "`offload` must be the last"},
      {"pool:size=2+quantize:bits=4,adapt=4", "bits are chosen of the first codec only"}};
  for (const auto& [text, why] : all) {
    EXPECT_THAT([&] { Treatment::parse(text); }, ThrowsMessage<InputError>(HasSubstr(why))) << text;
  }
}

}  // namespace
}  // namespace compact
