// SPDX-License-Identifier: Apache-2.0
// Text from a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compact/apps/sampling.h"
#include "compact/config/config.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/models/language_model.h"

namespace compact {

struct GenerateOptions {
  std::string prompt;
  bool chat = false;  // the prompt is what a user says, or JSON of messages: see chat_prompt()
  std::vector<std::string> stop;  // strings that end a text
  int64_t max_new_tokens = 200;
  int64_t num_samples = 1;
  SamplingOptions sampling;
  std::vector<int64_t> ends;  // end tokens besides those of the model and the tokenizer
  // Only options of Commands::kGenerate are read, such as --model_name_or_path (a folder with
  // config.json, model.safetensors and a tokenizer) and --tokenizer (empty: the folder's).
  TrainConfig config = [] {
    TrainConfig usual;
    usual.seed = 0;
    return usual;
  }();
};

struct Sample {
  std::string text;  // without the prompt
  int64_t tokens = 0;
  bool ended = false;  // by an end token or a string of `stop`, which is not in `text`
};

// Called with each piece of text as it is made: well-formed UTF-8, never empty.
using TextSink = std::function<void(int64_t sample, std::string_view text)>;

// Continues the prompt num_samples times. Sample i takes its random numbers from (seed, i) alone.
// The context starts with the tokens that the tokenizer's files put before a sentence, or, where
// they do not say, with config.json's begin of text, unless the prompt starts with them. An empty
// prompt without such tokens starts after an end of text. A text ends at the end tokens of
// config.json, generation_config.json or the tokenizer, and before a string of `stop`. A chat has
// the tokens that its template gives, nothing before them. Once the context fills the model's
// longest sequence, its older half is dropped. Lines of `warnings` come before the first text.
// Throws InputError on options out of range, a prompt longer than the context, and a model or
// tokenizer that cannot be loaded.
std::vector<Sample> generate(const GenerateOptions& options, const TextSink& sink,
                             std::vector<std::string>& warnings);
// The same with an open model and tokenizer. `window`: the longest context, at most the model's
// max_length. `prompt`: tokens instead of the options' prompt.
std::vector<Sample> generate(const LanguageModel& model, const Tokenizer& tokenizer,
                             const GenerateOptions& options, int64_t window, const TextSink& sink,
                             const std::vector<uint32_t>& prompt = {});

}  // namespace compact
