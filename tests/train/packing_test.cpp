// SPDX-License-Identifier: Apache-2.0
// Runs on packed rows: the losses of padded samples, plans, counts, bits chosen in between.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compact/models/gated_decoder.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/tasks/setup.h"
#include "compact/train/bit_chooser.h"
#include "compact/train/plans.h"
#include "tests/temporary_folder.h"
#include "tests/train/language_run.h"
#include "tests/train/text_runs.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

int64_t rows_of(const TrainConfig& c) {
  std::vector<std::string> warnings;
  return task_named(c.task).open(c, {}, warnings).train->size();
}

// A step of all samples, padded and packed.
TEST(Packing, TrainsWithTheLossAndGradientOfPaddedSamples) {
  const TemporaryFolder folder;
  json rows[2];
  for (const bool packed : {false, true}) {
    TrainConfig c = packed_prompts(folder.path(), packed ? "packed" : "padded");
    c.packing = packed;
    c.validation_split = 0;
    c.gradient_accumulation_steps = 1;
    c.per_device_train_batch_size = rows_of(c);
    c.max_steps = 1;
    c.eval_steps = 0;
    if (!packed) {
      EXPECT_EQ(c.per_device_train_batch_size, 40);
    } else {
      EXPECT_LT(c.per_device_train_batch_size, 16);
    }
    ran(c);
    rows[packed] = metrics_of(c.output_dir).at(0);
  }
  for (const char* key : {"loss", "grad_norm"}) {
    const double padded = rows[0][key], packed = rows[1][key];
    EXPECT_NEAR(packed / padded, 1, 1e-6) << key;
  }
}

// 32 samples of 20 inputs, four in each row.
TEST(Packing, StepsOfFullRowsAreAsPlanned) {
  const TemporaryFolder folder;
  for (const char* preset : {"off", "exact", "recompute"}) {
    TrainConfig c = packed_prompts(folder.path(), preset);
    c.preset = preset;
    std::string lines;
    for (int i = 0; i < 32; ++i) {
      lines += cat(R"({"prompt": "twice )", 1000 + i, R"( is", "completion": " )", 2000 + 2 * i,
                   "ab\"}\n");
    }
    spill(c.train_file[0], lines);
    c.validation_split = 0;
    c.max_steps = 2;
    const std::string text = ran(c);
    EXPECT_THAT(text, HasSubstr(": as planned"));
    EXPECT_THAT(text, HasSubstr("32 samples in 8 rows of up to 80 tokens, 0.0 % of them padding "
                                "(unpacked 16.7 %), 0 cut"));
    EXPECT_THAT(text, HasSubstr("2 steps (2 epochs) of 4 x 2 rows"));
    const json results = results_of(c);
    EXPECT_EQ(results["packing/samples"], 32);
    EXPECT_EQ(results["packing/rows"], 8);
    EXPECT_EQ(results["packing/samples_cut"], 0);
    EXPECT_DOUBLE_EQ(results["packing/padding_share"].get<double>(), 0);
    // Speed counts samples, 32 of them in a step.
    EXPECT_NEAR(results["samples_per_second"].get<double>() * results["step_seconds"].get<double>(),
                32, 1e-6);
  }
}

TEST(Packing, PlansForTheLongestSampleAndFullRows) {
  const TemporaryFolder folder;
  TrainConfig c = packed_prompts(folder.path(), "run");
  add_long_prompt(c, 60);
  c.max_steps = 8;
  ran(c);
  const json results = results_of(c);
  EXPECT_LE(results["memory/peak_bytes"], results["memory/planned_peak_bytes"]);
  EXPECT_GT(results["memory/peak_bytes"].get<double>(),
            0.9 * results["memory/planned_peak_bytes"].get<double>());
}

TEST(Packing, CountsSamplesThatAreCut) {
  const TemporaryFolder folder;
  TrainConfig c = packed_prompts(folder.path(), "run");
  c.block_size = 16;
  c.max_steps = 1;
  EXPECT_THAT(ran(c), HasSubstr(" cut, validation 8"));
  EXPECT_GT(results_of(c)["packing/samples_cut"], 0);
}

// Rows are what an epoch consists of.
TEST(Packing, EpochsAreOfRows) {
  const TemporaryFolder folder;
  TrainConfig c = packed_prompts(folder.path(), "run");
  c.max_steps = -1;
  c.num_train_epochs = 2;
  c.per_device_train_batch_size = 1;
  c.gradient_accumulation_steps = 1;
  ran(c);
  EXPECT_EQ(results_of(c)["steps"], 2 * rows_of(c));
  EXPECT_LT(rows_of(c), 16);
}

TEST(Packing, OtherTasksSayThatTheyDoNotReadIt) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "run");
  c.packing = true;
  c.max_steps = 1;
  c.warmup_steps = 0;
  EXPECT_THAT(ran(c), HasSubstr("--packing takes no effect: it is for prompt-completion"));
}

TEST(Packing, ResumesWithThePackingItHad) {
  const TemporaryFolder folder;
  TrainConfig c = packed_prompts(folder.path(), "run");
  c.max_steps = 2;
  c.save_steps = 1;
  ran(c);
  c.packing = false;
  c.resume_from_checkpoint = "latest";
  EXPECT_THAT(error_of([&] { ran(c); }), HasSubstr("--packing is false, but was true"));
}

// A decoder that notes with which ranges its loss is made.
class Watched final : public GatedDecoder {
 public:
  explicit Watched(const Policy& policy)
      : GatedDecoder(policy, {.max_length = 24, .seed = 1}, small_llama().tokens(),
                     small_llama().block, {.layers = 1}) {
    add_block(tables(small_llama().rope, 24), 0);
    finish_blocks();
  }
  at::Tensor loss(const Tensors& inputs, const at::Tensor& target, const Pass& pass,
                  PassReport* report) const override {
    seen.push_back(pass.ranges.defined() ? scores_of_ranges(pass.ranges, 1) : -1);
    tokens.push_back(target.numel());
    return GatedDecoder::loss(inputs, target, pass, report);
  }
  mutable std::vector<int64_t> seen, tokens;
};

// Bits are measured on parts of a batch, of rows or of tokens of one, each with its own ranges.
TEST(Packing, BitsAreMeasuredWithTheRangesOfTheParts) {
  for (const int64_t rows : {1, 4}) {
    const Policy policy = Policy::preset("gact-l2");
    TrainConfig c;
    c.bits_probes = 2;
    Watched network(policy);
    StepInputs batch{{at::arange(rows * 24, at::kLong).remainder(40).view({rows, 24})},
                     at::arange(rows * 24, at::kLong).remainder(39).view({rows, 24})};
    std::vector<std::array<int64_t, 3>> ranges;
    for (int64_t row = 0; row < rows; ++row) {
      ranges.insert(ranges.end(), {{row, 0, 7}, {row, 7, 9}, {row, 9, 24}});
    }
    batch.ranges = ranges_tensor(ranges);
    BitChooser bits(c, policy);
    const std::string line =
        bits.choose(network, batch, {}, [](const std::string&) { return true; });
    EXPECT_THAT(line, HasSubstr("predicted error"));
    ASSERT_FALSE(network.seen.empty());
    EXPECT_LT(network.tokens.back(), rows * 24);
    EXPECT_EQ(network.seen, network.tokens);  // every token of a part is in a range
  }
}

TEST(Packing, APlanWithoutDataHasFullRowsOfOneSample) {
  const TemporaryFolder folder;
  TrainConfig c = for_task(packed_prompts(folder.path(), "run"));
  c.train_file.clear();
  std::vector<std::string> warnings;
  const Task packed = task_named(c.task).open(c, {}, warnings);
  EXPECT_THAT(packed.network_text, HasSubstr("each row full of one sample"));
  const StepInputs inputs = packed.inputs(c, at::kMeta, 3);
  EXPECT_EQ(inputs.inputs[0].sizes(), (at::IntArrayRef{3, 80}));
  EXPECT_TRUE(
      inputs.ranges.equal(at::tensor({0, 0, 80, 1, 0, 80, 2, 0, 80}, at::kLong).view({3, 3})));
}

}  // namespace
}  // namespace compact
