// SPDX-License-Identifier: Apache-2.0
#include "compact/base/numbered_name.h"

#include <gtest/gtest.h>

namespace compact {
namespace {

TEST(NumberedName, IsTakenApartAtItsNumber) {
  const NumberedName slot("layers.13.mlp.norm");
  EXPECT_EQ(slot.series, "layers");
  EXPECT_EQ(slot.number, "13");
  EXPECT_EQ(slot.rest, "mlp.norm");
  EXPECT_EQ(slot.general(), "layers.*.mlp.norm");
  EXPECT_EQ(NumberedName("layer2.0").general(), "layer2.*");
  EXPECT_EQ(NumberedName("layer2.0").number, "0");
}

TEST(NumberedName, OthersStayWhole) {
  for (const char* name : {"loss.logits", "head", "", "conv1.linear.input", "a.b.3", "a..b"}) {
    EXPECT_EQ(NumberedName(name).series, name);
    EXPECT_EQ(NumberedName(name).number, "") << name;
    EXPECT_EQ(NumberedName(name).general(), name);
  }
}

}  // namespace
}  // namespace compact
