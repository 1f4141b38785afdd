// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prompt_dataset.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
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
  const auto table = open_table(path, {.strict = options.strict});
  std::vector<std::string> columns = {options.prompt};
  if (!table->has(options.prompt)) columns = split(options.prompt, ',');
  const size_t prompts = columns.size();
  columns.push_back(options.completion);
  table->choose(columns);
  const bool has_input = options.prompt == "instruction" && options.completion != "input" &&
                         table->choose_also("input");
  PromptSamples out;
  size_t bytes = 0;
  const std::vector<uint32_t> ends = tokenizer.ends();
  // Samples of a kind, and the line of the first: "line 3".
  struct Counted {
    int64_t count = 0;
    std::string first = {};
    void add(const TextTable& table) {
      if (count++ == 0) first = table.where().substr(table.path().size() + 2);
    }
  };
  Counted cut, dropped, across;
  std::vector<TableCell> cells;
  OddOnes odd(options.strict, path, "rows");
  int64_t rows = 0;
  bool more = true;
  while (more) {
    std::string asked;
    const auto read = [&] {
      more = table->next(cells);
      for (size_t i = 0; more && i <= prompts; ++i) {
        const bool optional = i > 0 && i < prompts;
        if (cells[i].kind != TableCell::kText &&
            !(optional && cells[i].kind == TableCell::kMissing)) {
          throw OddOne(cat(table->where(), " must have a text `", columns[i], "`"));
        }
        if (i == prompts || cells[i].text.empty()) continue;
        asked += cells[i].text + (prompts > 1 ? "\n" : "");
      }
    };
    if (!odd.read(read) || !more) continue;
    ++rows;
    COMPACT_CHECK(!has_input || cells.back().text.empty(), table->where(),
                  " has an `input` beside its `instruction`, which would be left out: "
                  "--prompt_column instruction,input reads both");
    const auto encoded = [&](const std::string& text) {
      return with_begin(options.begin, tokenizer.encode(text));
    };
    const std::vector<uint32_t> prompt = encoded(asked);
    std::vector<uint32_t> all = encoded(asked + cells[prompts].text);
    const auto common = std::mismatch(prompt.begin(), prompt.end(), all.begin(), all.end());
    if (common.first != prompt.end()) across.add(*table);
    const bool ended =
        common.second != all.end() && std::ranges::find(ends, all.back()) != ends.end();
    if (!ended) all.push_back(tokenizer.end_of_text());
    int64_t begin = common.first - prompt.begin();
    const int64_t over = static_cast<int64_t>(all.size()) - options.max_length;
    if (over > 0 && options.truncation == Truncation::kStart) {
      const auto kept = static_cast<int64_t>(options.begin.size());
      const int64_t lost = std::min(over, std::max<int64_t>(begin - kept, 0));
      all.erase(all.begin() + kept, all.begin() + kept + lost);
      begin -= lost;
    }
    const auto length = std::min(static_cast<int64_t>(all.size()), options.max_length);
    // The first token is nothing's next one.
    if (std::max<int64_t>(begin, 1) >= length ||
        (over > 0 && options.truncation == Truncation::kDrop)) {
      dropped.add(*table);
      continue;
    }
    if (over > 0) cut.add(*table);
    bytes += static_cast<size_t>(length) * sizeof(int32_t) + sizeof(std::vector<int32_t>);
    COMPACT_CHECK(bytes <= kMostPromptBytes, path, ": must give at most ",
                  format_bytes(kMostPromptBytes), " of tokens, gives more");
    out.ids.emplace_back(all.begin(), all.begin() + length);
    out.prompt_lengths.push_back(begin);
  }
  if (std::string line = odd.finish(rows); !line.empty()) out.warnings.push_back(std::move(line));
  COMPACT_CHECK(!out.ids.empty(), path, ": no sample has a token of its completion within ",
                options.max_length, " tokens");
  const auto warn = [&](const Counted& samples, const std::string& what) {
    if (samples.count == 0) return;
    out.warnings.push_back(cat(path, ": ", format_count(samples.count),
                               samples.count == 1 ? " sample " : " samples ", what,
                               "; the first is in ", samples.first));
  };
  using enum Truncation;
  warn(cut, cat("lost tokens at ", options.truncation == kStart ? "the prompt's start" : "the end",
                " to have at most ", options.max_length));
  warn(dropped, cat("dropped: ",
                    options.truncation == kDrop ? "more than" : "no token of the completion within",
                    " ", options.max_length, " tokens"));
  warn(across, "with a token across the end of the prompt; it counts as completion");
  if (table->replaced().count > 0) out.warnings.push_back(table->replaced().line());
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
    COMPACT_CHECK(length >= 2 && length - 1 <= padding.max_length, "[prompts] sample ", number,
                  " must have from 2 to ", padding.max_length + 1, " tokens, has ", length);
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
