// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prompt_dataset.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/text/text_table.h"

namespace compact {
namespace {

constexpr int64_t kIgnoredTarget = -100;
constexpr size_t kMostPromptBytes = size_t{1} << 33;

}  // namespace

PromptSamples read_prompts(const std::string& path, const Tokenizer& tokenizer,
                           const PromptOptions& options) {
  COMPACT_CHECK(options.max_length >= 2, "[prompts] the length must be at least 2, is ",
                options.max_length);
  COMPACT_CHECK(tokenizer.vocabulary() - 1 <= std::numeric_limits<int32_t>::max(),
                "[prompts] tokens must be below 2^31, the vocabulary has ", tokenizer.vocabulary());
  const auto table = open_table(path);
  table->choose({options.prompt, options.completion});
  PromptSamples out;
  size_t cut = 0, dropped = 0, across = 0, bytes = 0;
  std::vector<TableCell> cells;
  const std::vector<uint32_t> ends = tokenizer.ends();
  while (table->next(cells)) {
    for (size_t i = 0; i < 2; ++i) {
      COMPACT_CHECK(cells[i].kind == TableCell::kText, table->where(), " must have a text `",
                    i == 0 ? options.prompt : options.completion, "`");
    }
    const auto encoded = [&](const std::string& text) {
      return with_begin(options.begin, tokenizer.encode(text));
    };
    const std::vector<uint32_t> prompt = encoded(cells[0].text);
    std::vector<uint32_t> all = encoded(cells[0].text + cells[1].text);
    const auto common = std::mismatch(prompt.begin(), prompt.end(), all.begin(), all.end());
    across += common.first != prompt.end();
    const bool ended =
        common.second != all.end() && std::ranges::find(ends, all.back()) != ends.end();
    if (!ended) all.push_back(tokenizer.end_of_text());
    const int64_t begin = common.first - prompt.begin();
    const auto length = std::min(static_cast<int64_t>(all.size()), options.max_length);
    cut += length < static_cast<int64_t>(all.size());
    if (std::max<int64_t>(begin, 1) >= length) {  // the first token is nothing's next one
      ++dropped;
      continue;
    }
    bytes += static_cast<size_t>(length) * sizeof(int32_t) + sizeof(std::vector<int32_t>);
    COMPACT_CHECK(bytes <= kMostPromptBytes, path, ": must give at most ",
                  format_bytes(kMostPromptBytes), " of tokens, gives more");
    out.ids.emplace_back(all.begin(), all.begin() + length);
    out.prompt_lengths.push_back(begin);
  }
  COMPACT_CHECK(!out.ids.empty(), path, ": no sample has a token of its completion within ",
                options.max_length, " tokens");
  const auto warn = [&](size_t count, const std::string& what) {
    if (count > 0) out.warnings.push_back(cat(path, ": ", count, " samples ", what));
  };
  warn(cut, cat("were cut at the end to ", options.max_length, " tokens"));
  warn(dropped, cat("were dropped: no token of the completion is within ", options.max_length));
  warn(across, "have a token across the end of the prompt; it counts as completion");
  warn(static_cast<size_t>(table->replaced()), "places of invalid UTF-8 were replaced");
  return out;
}

PromptDataset::PromptDataset(std::shared_ptr<const PromptSamples> samples,
                             std::vector<int64_t> chosen, Padding padding, uint64_t seed)
    : samples_(std::move(samples)), chosen_(std::move(chosen)), padding_(padding) {
  COMPACT_CHECK(!chosen_.empty(), "[prompts] no samples");
  COMPACT_CHECK(padding.multiple > 0,
                "[prompts] lengths must be multiples of a positive number, is ", padding.multiple);
  const auto count = static_cast<int64_t>(samples_->ids.size());
  for (const int64_t number : chosen_) {
    COMPACT_CHECK(number >= 0 && number < count, "[prompts] a number must be within ", count,
                  ", is ", number);
    const auto length = static_cast<int64_t>(samples_->ids[static_cast<size_t>(number)].size());
    COMPACT_CHECK(length >= 2 && length <= padding.max_length, "[prompts] sample ", number,
                  " must have from 2 to ", padding.max_length, " tokens, has ", length);
    longest_ = std::max(longest_, length - 1);
  }
  begin(static_cast<int64_t>(chosen_.size()), seed);
}

Batch PromptDataset::collect(std::span<const Sample> samples) const {
  const auto count = static_cast<int64_t>(samples.size());
  const auto number_of = [&](const Sample& s) { return static_cast<size_t>(chosen_[s.number]); };
  size_t longest = 0;
  for (const Sample& s : samples) longest = std::max(longest, samples_->ids[number_of(s)].size());
  const int64_t length = padding_.length_for(static_cast<int64_t>(longest) - 1);
  Batch out{at::full({count, length}, padding_.pad, at::kLong),
            at::full({count, length}, kIgnoredTarget, at::kLong)};
  int64_t* input = out.input.mutable_data_ptr<int64_t>();
  int64_t* target = out.target.mutable_data_ptr<int64_t>();
  for (const Sample& s : samples) {
    const std::vector<int32_t>& ids = samples_->ids[number_of(s)];
    const int64_t first = std::max<int64_t>(1, samples_->prompt_lengths[number_of(s)]);
    std::copy(ids.begin(), ids.end() - 1, input);
    std::copy(ids.begin() + first, ids.end(), target + first - 1);
    input += length;
    target += length;
  }
  return out;
}

}  // namespace compact
