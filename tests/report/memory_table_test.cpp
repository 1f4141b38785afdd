// SPDX-License-Identifier: Apache-2.0
#include "compact/report/memory_table.h"

#include <gtest/gtest.h>

#include "compact/base/check.h"

namespace compact {
namespace {

TEST(MemoryTable, OneRowForAllLayersThatAgree) {
  std::vector<SlotBytes> slots;
  for (int layer = 0; layer < 30; ++layer) {
    slots.push_back({cat("layers.", layer, ".mlp.norm"), layer < 28 ? "recompute" : "keep",
                     layer < 28 ? 0 : 8, 8});
    slots.push_back({cat("layers.", layer, ".mlp.up"), "keep", 4, 4});
  }
  slots.push_back({"loss.logits", "chunk", 1, 100});
  const std::vector<SlotBytes> kinds = by_kind(slots);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0].name, "layers.{0..27}.mlp.norm");
  EXPECT_EQ(kinds[0].if_kept, 28 * 8);
  EXPECT_EQ(kinds[1].name, "layers.*.mlp.up");
  EXPECT_EQ(kinds[1].stored, 30 * 4);
  EXPECT_EQ(kinds[2].name, "layers.{28,29}.mlp.norm");
  EXPECT_EQ(kinds[2].stored, 2 * 8);
  EXPECT_EQ(kinds[3].name, "loss.logits");
}

TEST(MemoryTable, CountsWhereStagesDiffer) {
  std::vector<SlotBytes> slots;
  for (int stage = 1; stage < 4; ++stage) {
    for (int block = 0; block < 3; ++block) {
      for (const char* map :
           {"input", "conv1", "relu1", "conv2", "relu2", "extras", "a", "b", "c"}) {
        const bool rebuilt = stage == 1 && std::string(map) == "conv1";
        slots.push_back({cat("layer", stage, ".", block, ".", map), rebuilt ? "recompute" : "keep",
                         rebuilt ? 0 : 4, 4});
      }
    }
  }
  const std::vector<SlotBytes> kinds = by_kind(slots);
  ASSERT_EQ(kinds.size(), 10u);
  EXPECT_EQ(kinds[1].name, "layer*.*.conv1 (3 of 9)");
  EXPECT_EQ(kinds[1].treatment, "recompute");
  EXPECT_EQ(kinds[9].name, "layer*.*.conv1 (6 of 9)");
  EXPECT_EQ(kinds[9].stored, 6 * 4);
}

}  // namespace
}  // namespace compact
