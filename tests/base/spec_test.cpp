// SPDX-License-Identifier: Apache-2.0
#include "compact/base/spec.h"

#include <gmock/gmock.h>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

TEST(Spec, ParsesNameAndValues) {
  const Spec s = Spec::parse(" project:rank=0.25, type=srht ");
  EXPECT_EQ(s.name, "project");
  EXPECT_EQ(s.number("rank", 1), 0.25);
  EXPECT_EQ(s.text("type", ""), "srht");
  EXPECT_EQ(s.integer("missing", 7), 7);
  EXPECT_EQ(Spec::parse(s.str()), s);
  EXPECT_EQ(Spec::parse("keep").str(), "keep");
}

TEST(Spec, ParsesChains) {
  const auto chain = Spec::parse_chain("pool:size=2+quantize:bits=4");
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[1].integer("bits", 0), 4);
}

TEST(Spec, RefusesBadText) {
  for (const char* text : {"", ":a=1", "a:b", "a:=1", "a:b=1,b=2", "a:"}) {
    EXPECT_THROW(Spec::parse(text), InputError) << text;
  }
  EXPECT_THROW(Spec::parse_chain("a+"), InputError);
  const Spec s = Spec::parse("quantize:bits=four,x=nan,on=maybe");
  EXPECT_THROW(s.integer("bits", 0), InputError);
  EXPECT_THROW(s.number("x", 0), InputError);
  EXPECT_THROW(s.flag("on", false), InputError);
}

TEST(Spec, SuggestsKnownKeys) {
  const Spec s = Spec::parse("quantize:bit=4");
  EXPECT_THAT(error_of([&] { s.allow({"bits", "group"}); }), testing::HasSubstr("`bits`"));
  s.allow({"bit"});
}

}  // namespace
}  // namespace compact
