// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  return error_of([&] { Policy::parse(text, "file"); });
}

TEST(Policy, TheLastLineThatMatchesHolds) {
  const Policy p = Policy::parse(
      "# A summary\n# of two lines\n\n"
      "slot layers.*.mlp.norm = recompute   # why\n"
      "slot layers.1.mlp.norm = keep\r\n"
      "\tgrad layers.*.attn.{qkv,out} = project:rank=0.5\n"
      "moment * = bf16\n",
      "file");
  EXPECT_EQ(p.summary(), "A summary of two lines");
  EXPECT_EQ(p.slot("layers.0.mlp.norm").text(), "recompute");
  EXPECT_EQ(p.slot("layers.1.mlp.norm").text(), "keep");
  EXPECT_EQ(p.slot("layers.0.attn.norm").text(), "keep");
  EXPECT_EQ(p.grad("layers.2.attn.out").str(), "project:rank=0.5");
  EXPECT_EQ(p.grad("head").name, "full");
  EXPECT_EQ(p.moment("head"), "bf16");
  EXPECT_EQ(Policy().moment("head"), "");
}

TEST(Policy, RangesOfLayers) {
  const Policy p = Policy::parse(
      "slot layers.{0..13}.mlp.* = recompute\nslot layers.{2,4..5}.{attn.*,mlp.norm} = keep\n",
      "file");
  for (const int64_t layer : {0, 1, 2, 4, 5, 12, 13, 14, 113}) {
    const std::string name = cat("layers.", layer, ".mlp.");
    EXPECT_EQ(p.slot(name + "product").text(), layer <= 13 ? "recompute" : "keep") << layer;
    const bool kept = layer == 2 || layer == 4 || layer == 5 || layer > 13;
    EXPECT_EQ(p.slot(name + "norm").text(), kept ? "keep" : "recompute") << layer;
  }
  EXPECT_EQ(Policy::parse(p.str(), "again").str(), p.str());
  // Nothing is written out.
  EXPECT_EQ(
      Policy::parse("slot layers.{0..999999999}.* = recompute", "file").slot("layers.31.x").text(),
      "recompute");
  for (const char* bad : {"{3..1}", "{0..}", "{..3}", "{a..b}", "{1..2..3}", "{0..01}"}) {
    EXPECT_THAT(parse_error(cat("slot layers.", bad, ".mlp.norm = keep")),
                AllOf(HasSubstr("file:1"), HasSubstr(bad), HasSubstr("FIRST..LAST")));
  }
}

TEST(Policy, WritesWhatItReads) {
  for (const EmbeddedPreset& preset : embedded_presets()) {
    const Policy p = Policy::preset(preset.name);
    EXPECT_EQ(Policy::parse(p.str(), "again").str(), p.str());
    EXPECT_FALSE(p.summary().empty()) << preset.name;
  }
  const std::string text =
      "slot a.* = keep\ngrad b = project:rank=3,type=srht\nmoment * = f32\nweight * = disk\n"
      "weight b = keep\n";
  const Policy p = Policy::parse(text, "file");
  EXPECT_EQ(p.str(), text);
  EXPECT_EQ(p.weight("a"), MemoryPlace::kDisk);
  EXPECT_EQ(p.weight("b"), MemoryPlace::kDevice);
}

TEST(Policy, MalformedLines) {
  EXPECT_THAT(parse_error("slot a = keep\nslot b keep\n"),
              AllOf(HasSubstr("file:2"), HasSubstr("b keep")));
  EXPECT_THAT(parse_error("slots a = keep"),
              AllOf(HasSubstr("file:1"), HasSubstr("did you mean `slot`")));
  EXPECT_THAT(parse_error("slot = keep"), HasSubstr("file:1"));
  EXPECT_THAT(parse_error("slot a b = keep"), HasSubstr("one pattern"));
  EXPECT_THAT(parse_error("slot a ="), HasSubstr("file:1"));
  EXPECT_THAT(parse_error("= keep"), HasSubstr("file:1"));
}

TEST(Policy, UnknownTreatments) {
  EXPECT_THAT(parse_error("slot a = recomptue"),
              AllOf(HasSubstr("`recomptue`"), HasSubstr("did you mean `recompute`")));
  EXPECT_THAT(parse_error("grad a = keep"), HasSubstr("no treatment `keep`"));
  EXPECT_THAT(parse_error("moment a = f16"), HasSubstr("no treatment `f16`"));
  EXPECT_THAT(parse_error("weight a = f32"), HasSubstr("no treatment `f32`"));
  EXPECT_THAT(parse_error("slot a = keep:bits=4"), HasSubstr("bits"));
  EXPECT_THAT(parse_error("grad a = project:rnak=4"), HasSubstr("did you mean `rank`"));
  EXPECT_THAT(parse_error("grad a = project:type=shrt"), HasSubstr("did you mean `srht`"));
  for (const char* rank : {"0", "-1", "1.5", "nan", "x"}) {
    EXPECT_THAT(parse_error(cat("grad a = project:rank=", rank)), HasSubstr("rank")) << rank;
  }
  EXPECT_THAT(parse_error("grad a = project:period=-1"), HasSubstr("period"));
  EXPECT_THAT(parse_error("grad a = project:share=maybe"), HasSubstr("share"));
  EXPECT_THAT(parse_error("grad a = full:lr_scale=-1"), HasSubstr("lr_scale"));
  EXPECT_THAT(parse_error("slot loss.logits = chunk:tokens=0"), HasSubstr("tokens"));
}

TEST(Policy, TheSameThingTwiceDifferently) {
  EXPECT_THAT(parse_error("slot a = keep\ngrad a = full\nslot a = recompute"),
              AllOf(HasSubstr("file:3"), HasSubstr("file:1"), HasSubstr("recompute")));
  EXPECT_EQ(parse_error("slot a = keep\nslot a = keep"), "");
  Policy p = Policy::parse("slot a = keep", "one");  // a later source overrides
  p.append(Policy::parse("slot a = recompute", "two"));
  EXPECT_EQ(p.slot("a").text(), "recompute");
}

TEST(Policy, PatternsThatMatchNothing) {
  const std::vector<NamedRole> names = {{"layers.0.mlp.gate_up", Role::kGateUp},
                                        {"layers.1.mlp.gate_up", Role::kGateUp},
                                        {"loss.logits", Role::kLogits}};
  const auto error = [&](const std::string& text) {
    return error_of([&] { Policy::parse(text, "file").check_patterns(PolicyKind::kSlot, names); });
  };
  EXPECT_EQ(error("slot layers.*.mlp.gate_up = keep\ngrad nothing = full"), "");
  EXPECT_THAT(error("slot loss.logits = keep\nslot layers.*.mlp.gateup = keep"),
              AllOf(HasSubstr("file:2"), HasSubstr("layers.*.mlp.gateup"),
                    HasSubstr("did you mean `layers.*.mlp.gate_up`")));
  EXPECT_THAT(error("slot layers.2.mlp.gate_up = keep"), HasSubstr("matches no slot"));
  EXPECT_EQ(error("slot role:{norm,gate_up} = keep"), "");
  EXPECT_EQ(error("slot role:logits = chunk\nslot role:{norm,map} = keep"),
            "file:2: pattern `role:{norm,map}` matches no slot of this model; its roles: gate_up "
            "logits");
  const std::vector<NamedRole> plain = {{"conv1.linear.input"}};
  EXPECT_THAT(
      error_of([&] {
        Policy::parse("slot role:conv = keep", "file").check_patterns(PolicyKind::kSlot, plain);
      }),
      HasSubstr("its roles: none"));
}

// `tile` of something that cannot be in tiles is refused, unless the line treats others that are.
TEST(Policy, TilesThatAreNoneAreRefused) {
  const std::vector<NamedRole> names = {{"layers.0.attn.norm", Role::kNorm, true},
                                        {"layers.0.attn.qkv", Role::kQkv}};
  const auto error = [&](Policy policy, bool general = false) {
    if (general) policy.make_general();
    return error_of([&] { policy.check_patterns(PolicyKind::kSlot, names); });
  };
  const auto parsed = [](const char* text) { return Policy::parse(text, "file"); };
  EXPECT_EQ(error(parsed("slot role:norm = tile")), "");
  EXPECT_EQ(error(parsed("slot * = tile:tokens=8")), "");
  EXPECT_EQ(error(parsed("slot role:qkv = tile\nslot role:qkv = tile"), true), "");
  EXPECT_EQ(error(parsed("slot layers.*.attn.qkv = tile\nslot role:qkv = keep")), "");
  for (const char* const text :
       {"slot role:qkv = tile:tokens=8", "slot * = tile:tokens=8\nslot role:norm = keep"}) {
    EXPECT_THAT(error(parsed(text)),
                AllOf(HasSubstr("file:1: slot `"), HasSubstr("` = tile:tokens=8: `layers.0.attn."),
                      HasSubstr("cannot be made for some tokens at a time")));
  }
}

TEST(Policy, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(Policy::parse("\xEF\xBB\xBFslot a = keep\r\nslot b = keep\r\n", "file").str(),
            "slot a = keep\nslot b = keep\n");
  EXPECT_EQ(Policy::parse("\xEF\xBB\xBF", "file").str(), "");
}

TEST(Policy, CopiedLinesOfPresetsMayMatchNothing) {
  const std::vector<NamedRole> names = {{"layers.0.mlp.norm", Role::kNorm}};
  const auto error = [&](const std::string& text) {
    return error_of([&] {
      Policy policy = Policy::parse(text, "file");
      policy.make_copies_general();
      while (policy.halve_bits()) continue;
      policy.check_patterns(PolicyKind::kSlot, names);
    });
  };
  EXPECT_EQ(
      error(
          "slot *=quantize:bits=8 # my own\nslot role:{map,relu} = pool:size=2+quantize:bits=4\n"),
      "");
  EXPECT_THAT(error("slot * = keep\nslot role:{map,relu} = pool:size=2+quantize:bits=8\n"),
              HasSubstr("file:2: pattern `role:{map,relu}` matches no slot"));
}

TEST(Policy, CopiesForOtherNetworksAreRefusedAbovePresets) {
  const TemporaryFolder folder;
  std::ofstream(folder / "pool") << Policy::preset("pool").str();
  Policy policy = Policy::preset("exact");
  policy.append(Policy::from_file((folder / "pool").string()));
  const std::vector<NamedRole> names = {{"layers.0.mlp.norm", Role::kNorm}};
  EXPECT_THAT(error_of([&] { policy.check_patterns(PolicyKind::kSlot, names); }),
              HasSubstr("pool:1: no slot of this model is in the preset"));
}

TEST(Policy, PresetsForOtherNetworks) {
  const std::vector<NamedRole> maps = {{"layer1.0.input", Role::kMap}, {"stem.conv", Role::kConv}};
  const auto error = [&](const char* preset) {
    return error_of([&] { Policy::preset(preset).check_patterns(PolicyKind::kSlot, maps); });
  };
  EXPECT_EQ(error("pool"), "");
  EXPECT_EQ(error("gact-l1"), "");
  EXPECT_THAT(error("recompute"), HasSubstr("no slot of this model is in the preset"));
}

TEST(Policy, RolesBesideNames) {
  const Policy p = Policy::parse(
      "slot * = offload\n"
      "slot role:{norm,product,gate} = recompute\n"
      "slot layers.1.* = keep\n"
      "slot role:product = sketch\n",
      "file");
  EXPECT_EQ(p.slot("layers.0.attn.norm", Role::kNorm).text(), "recompute");
  EXPECT_EQ(p.slot("layers.1.attn.norm", Role::kNorm).text(), "keep");
  EXPECT_EQ(p.slot("layers.1.mlp.product", Role::kProduct).text(), "sketch");
  EXPECT_EQ(p.slot("layers.0.mlp.silu", Role::kGate).text(), "recompute");
  EXPECT_EQ(p.slot("layers.0.attn.qkv", Role::kQkv).text(), "offload");
  // A name is not a role.
  EXPECT_EQ(p.slot("norm").text(), "offload");
  EXPECT_EQ(p.slot("role:norm").text(), "offload");
  EXPECT_EQ(Policy::parse(p.str(), "again").str(), p.str());
  EXPECT_TRUE(p.names(PolicyKind::kSlot, "x", Role::kNorm));
  EXPECT_FALSE(Policy::parse("slot role:norm = keep", "file").names(PolicyKind::kSlot, "norm"));
}

TEST(Policy, RolesAreTheSameInAnyOrder) {
  EXPECT_THAT(parse_error("slot role:{norm,product} = keep\nslot role:{product,norm} = recompute"),
              AllOf(HasSubstr("file:2"), HasSubstr("`recompute` here and `keep` at file:1")));
  EXPECT_THAT(parse_error("slot role:norm = keep\nslot role:{norm,norm} = recompute"),
              HasSubstr("file:2"));
}

TEST(Policy, UnknownRoles) {
  EXPECT_THAT(parse_error("slot a = keep\nslot role:nrom = keep"),
              AllOf(HasSubstr("file:2"), HasSubstr("no role `nrom`"), HasSubstr("`norm`")));
  EXPECT_THAT(parse_error("slot role:{norm,qvk} = keep"), HasSubstr("did you mean `qkv`"));
  for (const char* none : {"role:", "role:*", "role:{}", "role:{norm", "role:norm,qkv"}) {
    EXPECT_THAT(parse_error(cat("slot ", none, " = keep")), HasSubstr("no role")) << none;
  }
  EXPECT_THAT(parse_error("grad role:norm = full"), HasSubstr("slots alone have roles"));
  EXPECT_THAT(parse_error("moment role:norm = bf16"), HasSubstr("slots alone have roles"));
  EXPECT_THAT(parse_error("slot role:norm = keep\nslot role:norm = offload"), HasSubstr("file:1"));
}

TEST(Policy, HalvesWhatCanHaveFewerBits) {
  Policy p = Policy::parse(
      "slot a = quantize:bits=8,adapt=6\nslot b = pool:size=2+quantize+offload\n"
      "slot c = quantize:bits=2,levels=positive\nslot d = mask\nslot e = keep\n",
      "file");
  EXPECT_EQ(p.fewest_open_bits(), 8);
  EXPECT_TRUE(p.halve_bits());
  EXPECT_EQ(p.str(),
            "slot a = quantize:bits=4,adapt=4\nslot b = pool:size=2+quantize:bits=2+offload\n"
            "slot c = quantize:bits=2,levels=positive\nslot d = mask\nslot e = keep\n");
  EXPECT_EQ(p.fewest_open_bits(), 4);
  EXPECT_TRUE(p.halve_bits());
  EXPECT_TRUE(p.halve_bits());
  EXPECT_FALSE(p.halve_bits());
  EXPECT_EQ(p.slot("a").text(), "quantize:bits=1,adapt=1");
  EXPECT_THAT(error_of([] {
                Policy::parse("slot a = quantize:bits=2,adapt=3", "file").fewest_open_bits();
              }),
              AllOf(HasSubstr("file:1"), HasSubstr("at most bits")));
}

TEST(Policy, OverridesOfProjections) {
  Policy p = Policy::preset("compact");
  EXPECT_EQ(p.override_projection("rank", "0.125"), 2);
  EXPECT_EQ(p.grad("layers.0.attn.qkv").number("rank", 0), 0.125);
  EXPECT_THROW(p.override_projection("rank", "0"), InputError);
  EXPECT_EQ(Policy::preset("off").override_projection("rank", "4"), 0);
}

TEST(Policy, PresetsAndFiles) {
  EXPECT_THAT(error_of([] { Policy::preset("exat"); }), HasSubstr("did you mean `exact`"));
  EXPECT_THAT(error_of([] { Policy::from_file("/nonexistent/p.policy"); }),
              HasSubstr("/nonexistent/p.policy"));
  const std::string path = testing::TempDir() + "a.policy";
  std::ofstream(path) << "slot a = keep\nslot b = kep\n";
  EXPECT_THAT(error_of([&] { Policy::from_file(path); }), HasSubstr(path + ":2"));
}

}  // namespace
}  // namespace compact
