// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose content tells their step, for tests that break saving in the middle.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compact/io/checkpoint.h"

namespace compact {

// `mark`: another content of the same step.
inline CheckpointContent content_of(int64_t step, int64_t mark = 0) {
  const auto value = static_cast<double>(step) + 0.001 * static_cast<double>(mark);
  return {.model = {{"weight", at::full({7, 5}, value, at::kDouble)}},
          .optimizer = {{"weight.exp_avg", at::full({7, 5}, -value, at::kDouble)}},
          .config = {{"model_type", "llama"}},
          .trainer_state = {{"global_step", step}, {"mark", mark}},
          .texts = {{"policy.txt", std::to_string(step)}}};
}

// The mark of a checkpoint that is sound and holds what was saved for its step; nothing otherwise.
inline std::optional<int64_t> mark_of(const std::filesystem::path& path) {
  if (verify_checkpoint(path)) return std::nullopt;
  const OpenCheckpoint open = open_checkpoint(path);
  const int64_t mark = open.trainer_state["mark"];
  const CheckpointContent expected = content_of(open.step, mark);
  const bool same =
      open.trainer_state == expected.trainer_state && open.texts == expected.texts &&
      open.config == expected.config &&
      at::equal(open.model.read("weight"), expected.model[0].second) &&
      at::equal(open.optimizer.at(0).read("weight.exp_avg"), expected.optimizer[0].second);
  return same ? std::optional(mark) : std::nullopt;
}

// Steps of the checkpoints listed, every one of which must be sound.
inline std::set<int64_t> sound_steps(const std::filesystem::path& folder) {
  std::set<int64_t> steps;
  for (const auto& found : list_checkpoints(folder)) {
    EXPECT_TRUE(mark_of(found.path)) << verify_checkpoint(found.path).value_or("other content");
    steps.insert(found.step);
  }
  return steps;
}

}  // namespace compact
