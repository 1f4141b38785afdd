// SPDX-License-Identifier: Apache-2.0
#include "compact/base/philox.h"

#include <gmock/gmock.h>

namespace compact {
namespace {

using testing::ElementsAre;

// Known answers of Random123 (kat_vectors, philox 4x32 10). Its counter words 0..3 are the low and
// high halves of our counter, then of our stream.
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox(0, 0, 0).v, ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox(~0ull, ~0ull, ~0ull).v,
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e).v,
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, DerivedKeysDiffer) {
  EXPECT_EQ(derive(1, 2), derive(1, 2));
  EXPECT_NE(derive(1, 2), derive(2, 1));
  EXPECT_NE(derive(derive(1, 2), 3), derive(derive(1, 3), 2));
  EXPECT_NE(label_of("q", 1), label_of("k", 1));
}

}  // namespace
}  // namespace compact
