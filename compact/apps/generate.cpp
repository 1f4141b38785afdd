// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/generate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/apps/python_prepare.h"
#include "compact/apps/stop_strings.h"
#include "compact/apps/text_stream.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/philox.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"
#include "compact/models/decoder.h"
#include "compact/models/families.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {
namespace {

constexpr uint64_t kSampleKey = 0x73616d706c65;

std::vector<uint32_t> prompt_ids(const TokenIds& known, const Tokenizer& tokenizer,
                                 const std::string& prompt) {
  std::vector<uint32_t> ids =
      with_begin(begin_of_prompt(tokenizer, known), tokenizer.encode(prompt));
  if (ids.empty()) ids.push_back(tokenizer.end_of_text());
  return ids;
}

// The end tokens in a folder's generation_config.json.
std::vector<int64_t> ends_beside(const std::string& folder) {
  const std::filesystem::path file = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(file)) return {};
  const nlohmann::json config = read_json(file);
  return ConfigKeys(config, file.string()).tokens("eos_token_id", {});
}

class Generator {
 public:
  // `context`: tokens of the prompt, after which its text is decoded.
  Generator(const LanguageModel& model, const Tokenizer& tokenizer, const GenerateOptions& options,
            int64_t window, const std::vector<uint32_t>& prompt, std::vector<uint32_t> context)
      : tokenizer_(tokenizer),
        options_(options),
        context_(std::move(context)),
        prompt_(prompt.begin(), prompt.end()),
        prompt_length_(static_cast<int64_t>(prompt_.size())),
        decoder_(model, capacity(window)),
        ends_(options.ends) {
    ends_.insert(ends_.end(), model.tokens().eos.begin(), model.tokens().eos.end());
    for (const uint32_t id : tokenizer.ends()) ends_.push_back(id);
    after_prompt_ = decoder_.append(prompt_);
  }

  Sample sample(int64_t number, const TextSink& sink) {
    decoder_.truncate(std::min(decoder_.length(), prompt_length_));
    if (slid_) {
      decoder_.truncate(0);
      decoder_.append(prompt_);
      slid_ = false;
    }
    std::vector<int64_t> ids = prompt_;
    TextStream stream(tokenizer_, context_);
    StopStrings stop(options_.stop);
    const uint64_t key = derive(derive(static_cast<uint64_t>(options_.config.seed), kSampleKey),
                                static_cast<uint64_t>(number));
    Sample result;
    const auto give = [&](const std::string& text) {
      if (text.empty()) return;
      result.text += text;
      if (sink) sink(number, text);
    };
    at::Tensor logits = after_prompt_;
    while (result.tokens < options_.max_new_tokens) {
      const int64_t next = choose(logits, key, result.tokens);
      ++result.tokens;
      if (std::ranges::find(ends_, next) != ends_.end()) {
        result.ended = true;
        break;
      }
      give(stop.add(stream.add(static_cast<uint32_t>(next))));
      if ((result.ended = stop.met())) break;
      ids.push_back(next);
      if (result.tokens < options_.max_new_tokens) logits = advance(ids);
    }
    if (!stop.met()) give(stop.add(stream.finish()));
    result.ended |= stop.met();
    give(stop.finish());
    return result;
  }

 private:
  int64_t capacity(int64_t window) const {
    COMPACT_CHECK(prompt_length_ <= window, "--prompt has ", prompt_length_,
                  " tokens, the model takes at most ", window);
    return std::min(window, prompt_length_ + options_.max_new_tokens);
  }

  // Logits after the last of `ids`, which the decoder has not seen yet.
  at::Tensor advance(const std::vector<int64_t>& ids) {
    if (decoder_.length() < decoder_.capacity()) return decoder_.append(std::span(ids).last(1));
    // Kept keys are rotated by their positions, so the newer half is run again at new ones.
    slid_ = true;
    const auto half = static_cast<size_t>(std::max<int64_t>(1, decoder_.capacity() / 2));
    decoder_.truncate(0);
    return decoder_.append(std::span(ids).last(std::min(half, ids.size())));
  }

  int64_t choose(const at::Tensor& logits, uint64_t key, int64_t position) const {
    const at::Tensor row = logits.to(at::kCPU, at::kFloat).contiguous();
    // A vocabulary may be padded beyond the tokenizer's: those ids have no text.
    const auto count = static_cast<size_t>(std::min(row.numel(), tokenizer_.vocabulary()));
    const Random4 r = philox(key, static_cast<uint64_t>(position));
    const double uniform = ((uint64_t{r.v[0]} << 21) ^ (r.v[1] >> 11)) * 0x1p-53;
    return compact::sample({row.const_data_ptr<float>(), count}, options_.sampling, uniform);
  }

  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  std::vector<uint32_t> context_;
  std::vector<int64_t> prompt_;
  int64_t prompt_length_;
  Decoder decoder_;
  std::vector<int64_t> ends_;
  at::Tensor after_prompt_;
  bool slid_ = false;
};

}  // namespace

std::vector<Sample> generate(const LanguageModel& model, const Tokenizer& tokenizer,
                             const GenerateOptions& options, int64_t window, const TextSink& sink,
                             const std::vector<uint32_t>& prompt) {
  check_sampling(options.sampling);
  COMPACT_CHECK(options.max_new_tokens >= 0, "--max_new_tokens must be at least 0, is ",
                options.max_new_tokens);
  COMPACT_CHECK(options.num_samples >= 1, "--num_samples must be at least 1, is ",
                options.num_samples);
  check_values(options.config);
  const int64_t vocabulary = model.tokens().vocabulary;
  COMPACT_CHECK(tokenizer.vocabulary() <= vocabulary, "the tokenizer ", tokenizer.spec(), " has ",
                tokenizer.vocabulary(), " tokens, the model only ", vocabulary);
  const bool made = !prompt.empty();
  Generator generator(model, tokenizer, options, window,
                      made ? prompt : prompt_ids(model.tokens(), tokenizer, options.prompt),
                      made ? prompt : tokenizer.encode(options.prompt));
  std::vector<Sample> samples;
  for (int64_t i = 0; i < options.num_samples; ++i) samples.push_back(generator.sample(i, sink));
  return samples;
}

std::vector<Sample> generate(const GenerateOptions& options, const TextSink& sink,
                             std::vector<std::string>& warnings) {
  const TrainConfig& c = options.config;
  check_values(c);
  const std::string& folder = c.model_name_or_path;
  COMPACT_CHECK(!folder.empty(), "--model_name_or_path DIR is needed");
  check_sampling(options.sampling);
  check_model_folder(folder);
  const at::Device device = device_of(c.device, warnings);
  const std::unique_ptr<ModelConfig> config = read_model(folder, ModelUse::kTokens);
  const auto tokenizer = c.tokenizer.empty() ? load_tokenizer(folder) : open_tokenizer(c.tokenizer);
  StopStrings{options.stop};  // that they are sound
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  set_matmul_precision(c.matmul_precision, device);
  const ModelShape shape = config->shape();
  COMPACT_CHECK(!options.chat || c.tokenizer.empty() || is_folder(c.tokenizer),
                "--chat: --tokenizer must be a folder with a chat template, is ", c.tokenizer);
  const std::vector<uint32_t> prompt =
      options.chat ? chat_prompt(options.prompt, c.tokenizer.empty() ? folder : c.tokenizer)
                   : prompt_ids(shape.tokens, *tokenizer, options.prompt);
  const auto wanted =
      static_cast<int64_t>(prompt.size()) + std::max<int64_t>(0, options.max_new_tokens);
  const int64_t longest = std::min(shape.length, wanted);
  const std::unique_ptr<Network> network = config->build(
      Policy(), {.device = device, .dtype = dtype_of(c.dtype), .max_length = longest});
  for (const std::string& line : load_weights(*network, folder).warnings) warnings.push_back(line);
  const auto& model = dynamic_cast<const LanguageModel&>(*network);  // as all of this use
  GenerateOptions with_ends = options;
  for (const int64_t id : ends_beside(folder)) with_ends.ends.push_back(id);
  return generate(model, *tokenizer, with_ends, shape.length, sink,
                  options.chat ? prompt : std::vector<uint32_t>());
}

}  // namespace compact
