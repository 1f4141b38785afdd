// SPDX-License-Identifier: Apache-2.0
// Targets that are no class are an error before a batch goes to its device, in training and in
// evaluation.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/tasks/evaluate.h"
#include "tests/train/language_run.h"
#include "tests/train/task_runs.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Two samples of four tokens, with these targets.
class Samples final : public Dataset {
 public:
  explicit Samples(const std::vector<int64_t>& targets) : targets_(at::tensor(targets, at::kLong)) {
    begin(2, 1);
  }

 protected:
  Batch collect(std::span<const Sample> samples) const override {
    Batch batch{at::ones({std::ssize(samples), 4}, at::kLong), targets_.new_empty({0, 4})};
    for (const Sample& s : samples) {
      batch.target = at::cat({batch.target, targets_.view({2, 4}).narrow(0, s.number, 1)});
    }
    return batch;
  }

 private:
  at::Tensor targets_;
};

class Values final : public Dataset {
 public:
  Values() { begin(4, 1); }

 protected:
  Batch collect(std::span<const Sample> samples) const override {
    return {at::ones({std::ssize(samples), 4}, at::kLong),
            at::full({std::ssize(samples)}, -100, at::kFloat)};
  }
};

TEST(Targets, NumbersOfARegressionAreAllCounted) {
  TrainConfig c;
  c.per_device_train_batch_size = 4;
  Task task;
  task.train = std::make_unique<Values>();
  EXPECT_EQ(next_window(task, c, *single_group()).targets, 4);
}

TEST(Targets, MustBeClassesOrIgnored) {
  TrainConfig c;
  c.per_device_train_batch_size = 2;
  const Llama network(small_llama(), {}, {.max_length = 4});
  const auto trained = [&](const std::vector<int64_t>& targets, int64_t classes) {
    Task task;
    task.train = std::make_unique<Samples>(targets);
    task.classes = classes;
    return next_window(task, c, *single_group()).targets;
  };
  const auto evaluated = [&](const std::vector<int64_t>& targets) {
    Task task;
    task.classes = 5;
    return evaluate_samples(network, Samples(targets), 0, 2, task).targets;
  };
  const std::vector<int64_t> sound = {0, 4, -100, 1, -100, -100, 2, 3};
  EXPECT_EQ(trained(sound, 5), 5);
  EXPECT_EQ(evaluated(sound), 5);
  EXPECT_EQ(trained(std::vector<int64_t>(8, -100), 5), 0);
  for (const int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{-101}, int64_t{1} << 40}) {
    std::vector<int64_t> targets = sound;
    targets[7] = bad;
    const auto wrong = HasSubstr(cat("in [0, 5), is ", bad));
    EXPECT_THAT([&] { trained(targets, 5); }, ThrowsMessage<InputError>(wrong));
    EXPECT_THAT([&] { evaluated(targets); }, ThrowsMessage<InputError>(wrong));
    EXPECT_EQ(trained(targets, 0), 5);  // values
  }
}

TEST(Targets, EveryTaskKnowsItsClasses) {
  const TemporaryFolder folder;
  const auto classes = [](const TrainConfig& c) {
    std::vector<std::string> warnings;
    return task_named(c.task).open(for_task(c), {}, warnings).classes;
  };
  EXPECT_EQ(classes(images(folder.path(), "images")), 10);
  EXPECT_EQ(classes(graphs(folder.path(), "graphs")), 2);
  TrainConfig text = small_run(folder.path(), "text");
  text.model = "llama-60m";
  text.tokenizer = "bytes";
  EXPECT_EQ(classes(text), 257);
  TrainConfig sentences = small_run(folder.path(), "sentences");
  sentences.task = "text-classification";
  sentences.model = "bert-tiny";
  sentences.tokenizer.clear();
  EXPECT_EQ(classes(sentences), 2);
}

}  // namespace
}  // namespace compact
