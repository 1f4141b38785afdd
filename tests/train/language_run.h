// SPDX-License-Identifier: Apache-2.0
// A small LLaMA, and a run of one: seven updates of three micro-batches.
#pragma once

#include "compact/models/llama/llama.h"
#include "tests/train/resume.h"

namespace compact {

inline LlamaConfig small_llama() {
  return {.block = block_shape(16, 24, 2, 2, 8), .num_hidden_layers = 1, .vocab_size = 40};
}

inline TrainConfig language_run(const std::filesystem::path& folder, const std::string& output) {
  const std::filesystem::path text = folder / "text.txt";
  if (!std::filesystem::exists(text)) {
    std::string words;
    for (int i = 0; i < 4000; ++i) words += "word" + std::to_string(i * 7919 % 97) + ' ';
    spill(text, words);
  }
  const std::filesystem::path shape = folder / "config.json";
  spill(shape,
        R"({"model_type":"llama","hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":257,"max_position_embeddings":64})");
  TrainConfig c;
  c.model_name_or_path = folder.string();
  c.train_file = {text.string()};
  c.block_size = 24;
  c.per_device_train_batch_size = 2;
  c.gradient_accumulation_steps = 3;
  c.max_steps = 7;
  c.learning_rate = 1e-2;
  c.warmup_steps = 2;
  c.weight_decay = 0.1;
  c.logging_steps = 2;
  c.validation_split = 0.1;
  c.threads = 2;
  c.device = "cpu";
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / output).string();
  return c;
}

// Two runs with the same figures, and the same bytes in these files of their folders.
inline void expect_same_run(const std::filesystem::path& one, const std::filesystem::path& two,
                            const std::vector<std::string>& files) {
  EXPECT_EQ(figures(one), figures(two));
  for (const std::string& file : files) {
    const std::string bytes = slurp(one / file);
    EXPECT_FALSE(bytes.empty()) << file;
    EXPECT_TRUE(slurp(two / file) == bytes) << file;
  }
}

}  // namespace compact
