// SPDX-License-Identifier: Apache-2.0
// Small runs of the tasks on texts.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "compact/tasks/evaluate.h"
#include "tests/train/resume.h"

namespace compact {

namespace fs = std::filesystem;

inline const char* const kWords[] = {"a",   "film", "that", "is", "good",
                                     "bad", "very", "not",  "it", "was"};

// Sentences are positive where they have more `good` than `bad`; of pairs, by the first.
inline void write_texts(const fs::path& folder, bool pairs) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char* word : kWords) vocabulary += std::string(word) + "\n";
  spill(folder / "vocab.txt", vocabulary);
  std::mt19937 random(7);
  for (const char* name : {"train.tsv", "dev.tsv"}) {
    std::string text = pairs ? "sentence1\tsentence2\tlabel\n" : "sentence\tlabel\n";
    for (int i = 0; i < 60; ++i) {
      const auto sentence = [&] {
        std::string words;
        for (int n = 1 + static_cast<int>(random() % 9); n > 0; --n) {
          words += std::string(words.empty() ? "" : " ") + kWords[random() % 10];
        }
        return words;
      };
      const std::string first = sentence() + (i % 2 ? " good" : " bad");
      text += first + (pairs ? "\t" + sentence() : "") + (i % 2 ? "\tyes\n" : "\tno\n");
    }
    spill(folder / name, text);
  }
}

inline TrainConfig text_run(const fs::path& folder, const std::string& output) {
  TrainConfig c = small_run(folder, output);
  c.learning_rate = 1e-3;
  c.eval_steps = 2;
  c.update_proj_gap = -1;
  c.cache_dir = (folder / "cache").string();
  return c;
}

inline TrainConfig texts(const fs::path& folder, const std::string& output, bool pairs = false) {
  if (!fs::exists(folder / "train.tsv")) write_texts(folder, pairs);
  TrainConfig c = text_run(folder, output);
  c.task = "text-classification";
  c.model = "bert-tiny";
  c.tokenizer = "wordpiece:file=" + (folder / "vocab.txt").string();
  c.max_seq_length = 24;
  c.train_file = {(folder / "train.tsv").string()};
  c.validation_file = {(folder / "dev.tsv").string()};
  return c;
}
inline TrainConfig sentences(const fs::path& folder, const std::string& output) {
  return texts(folder, output);
}
inline TrainConfig best_of_pairs(const fs::path& folder, const std::string& output) {
  TrainConfig c = texts(folder, output, true);
  c.load_best_model_at_end = true;
  c.eval_steps = 1;
  return c;
}

inline TrainConfig prompts(const fs::path& folder, const std::string& output) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(i * 37);
    lines += R"({"prompt": "twice )" + number + R"( is ", "completion": ")" +
             std::to_string(i * 74) + "\"}\n";
  }
  spill(folder / "train.jsonl", lines);
  TrainConfig c = text_run(folder, output);
  c.task = "prompt-completion";
  c.model = "llama-tiny";
  c.block_size = 32;
  c.validation_split = 0.2;
  c.train_file = {(folder / "train.jsonl").string()};
  return c;
}

// Pairs of a right and a wrong completion of those.
inline TrainConfig preferences(const fs::path& folder, const std::string& output) {
  TrainConfig c = prompts(folder, output);
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += R"({"prompt": "twice )" + std::to_string(i * 37) + R"( is ", "chosen": ")" +
             std::to_string(i * 74) + R"(", "rejected": ")" + std::to_string(i * 5 + 1) + "\"}\n";
  }
  spill(folder / "pairs.jsonl", lines);
  c.task = "preference";
  c.train_file = {(folder / "pairs.jsonl").string()};
  return c;
}

// Adds a completion of so many letters to those, and trains on all.
inline void add_long_prompt(TrainConfig& c, size_t letters) {
  const std::string& file = c.train_file[0];
  spill(file, slurp(file) + R"({"prompt": "long", "completion": ")" + std::string(letters, 'x') +
                  "\"}\n");
  c.validation_split = 0;
}

// About three samples in a row.
inline TrainConfig packed_prompts(const fs::path& folder, const std::string& output) {
  TrainConfig c = prompts(folder, output);
  c.packing = true;
  c.block_size = 80;
  return c;
}
// The same of a GPT-2 with dropout.
inline TrainConfig packed_gpt2(const fs::path& folder, const std::string& output) {
  spill(folder / "config.json", R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 80, "vocab_size": 257})");
  TrainConfig c = packed_prompts(folder, output);
  c.model.clear();
  c.model_name_or_path = folder.string();
  c.dropout = 0.1;
  return c;
}

inline std::string ran(const TrainConfig& c) {
  std::ostringstream console;
  EXPECT_EQ(train(c, console), kExitOk) << console.str();
  return console.str();
}

inline nlohmann::json results_of(const TrainConfig& c) {
  return nlohmann::json::parse(slurp(c.output_dir + "/all_results.json"));
}

// The result of `compact eval` for the model that a run left.
inline EvalResult evaluated(const TrainConfig& run) {
  TrainConfig c;
  c.task.clear();  // it is the run's
  c.model_name_or_path = run.output_dir;
  c.validation_file = run.validation_file;
  c.max_eval_samples = 0;
  c.device = "cpu";
  return evaluate(c).results.front().second;
}

}  // namespace compact
