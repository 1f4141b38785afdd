// SPDX-License-Identifier: Apache-2.0
// Prompts with the completions that a causal language model shall learn to give: the loss is on the
// tokens of completions and on the end of text after them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/data/samples/dataset.h"
#include "compact/data/text/padding.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

struct PromptSamples {
  bool pairs = false;                     // samples 2i and 2i + 1: chosen, rejected
  std::vector<std::vector<int32_t>> ids;  // prompt, completion, end of text
  std::vector<int64_t> prompt_lengths;    // tokens without loss
  // Ranges of tokens after the prompt that have no loss either, as further turns of a user.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> silent;
  std::vector<std::string> warnings;  // about the file, one line each
  int64_t cut = 0;                    // samples that lost tokens
  int64_t size() const { return static_cast<int64_t>(ids.size()) / (pairs ? 2 : 1); }
};

enum class Truncation : uint8_t { kEnd, kStart, kDrop };

struct PromptOptions {
  // Fields; several of a prompt with commas between them, each that is not empty ends with "\n".
  std::string prompt = "prompt", completion = "completion";
  std::string rejected = "";  // of an answer that the completion was preferred to; empty: no pairs
  int64_t max_length = 1024;  // tokens of a sample, at least 2
  std::vector<uint32_t> begin = {};  // tokens before every prompt
  Truncation truncation = Truncation::kEnd;
  bool strict = true;  // a row that cannot be read is an error; else a warning counts such
};

// Samples of a .jsonl file (or a .csv or .tsv file with a header), perhaps compressed. As in TRL's
// SFTTrainer, prompt and completion are encoded as one text; its first tokens that the prompt alone
// has too are the prompt. `begin` and the end of text are not added to a text that has them. Tokens
// beyond max_length are cut from the end, the end of text first; or from the start of the prompt,
// but not from `begin`, as long as there is some; or the sample is dropped. Unlike in TRL, a token
// across the border of prompt and completion counts as completion, and samples without any
// completion left are dropped; a pair where one of the two is. Warnings count all of these, and
// name the first. Throws InputError with path, line and rule, also where no sample is left, and
// where an `instruction` is read without the `input` beside it.
PromptSamples read_prompts(const std::string& path, const Tokenizer& tokenizer,
                           const PromptOptions& options = {});

// Samples of a token file of samples, with the tokens as stored. Options that take effect: length,
// truncation, and the length of `begin`: so many first tokens are kept of a sample that is cut at
// its start. Throws InputError with path and rule, also on a file of text, and on one of pairs
// unless `rejected` asks for them, whatever it says.
PromptSamples read_token_samples(const std::string& path, const Tokenizer& tokenizer,
                                 const PromptOptions& options = {});

// Batches: input int64 [batch, length], padded on the right; target int64 [batch, length], the next
// tokens, -100 where that is a token without loss and in the padding. Packed, a row has as many
// samples as best-fit decreasing puts into padding.max_length, and `ranges` says where they are:
// rows are what an epoch consists of then, and no target is of another sample than its input.
// A row of pairs has both answers, with `ranges` of their own; `more` has their reference log
// probabilities f64 [batch, 2], and there is one loss a row.
class PromptDataset final : public Dataset {
 public:
  // The samples, or pairs, whose numbers are in `chosen`. Pairs cannot be packed. Throws InputError
  // where there are none, or one has fewer than 2 tokens or, without the last, which is not an
  // input, more than padding.max_length.
  PromptDataset(std::shared_ptr<const PromptSamples> samples, std::vector<int64_t> chosen,
                Padding padding, uint64_t seed, bool packed = false);

  int64_t longest_row() const { return padding_.length_for(longest_); }  // of any batch
  int64_t longest_inputs() const { return longest_; }                    // of a row
  int64_t longest_sample() const { return longest_sample_; }             // inputs
  int64_t samples() const { return static_cast<int64_t>(chosen_.size()); }
  int64_t inputs() const { return inputs_; }  // of all samples
  // The share of an epoch's tokens that are padding, in batches of so many rows.
  double padding_share(int64_t batch) const;
  // For pairs: f64 [size(), 2] on the CPU, of the chosen and the rejected answers; zeros until
  // then.
  void set_reference(const at::Tensor& log_probs);

 private:
  // The samples of a row.
  std::span<const int64_t> of_row(int64_t row) const;
  int64_t row_inputs(int64_t row) const;
  Batch collect(std::span<const Sample> samples) const override;

  std::shared_ptr<const PromptSamples> samples_;
  std::vector<int64_t> chosen_;  // row by row
  std::vector<size_t> begins_;   // of the rows among them, and the end; empty: each is a row
  Padding padding_;
  // Inputs of a row, of a sample: one fewer than its tokens.
  int64_t longest_ = 0, longest_sample_ = 0, inputs_ = 0;
  at::Tensor reference_;  // of pairs
};

}  // namespace compact
