// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prompt_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <span>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/samples/pack.h"
#include "compact/data/text/text_table.h"
#include "compact/data/text/token_file.h"

namespace compact {
namespace {

constexpr int64_t kIgnoredTarget = -100;
constexpr size_t kMostPromptBytes = size_t{1} << 33;
constexpr int64_t kTokensAtOnce = int64_t{1} << 16;  // tokens that are read at a time

// Samples of a kind, and the place of the first: "line 3".
struct Counted {
  int64_t count = 0;
  std::string first = {};
};

void warn(PromptSamples& out, const std::string& path, const Counted& samples,
          const std::string& what) {
  if (samples.count == 0) return;
  out.warnings.push_back(cat(path, ": ", format_count(samples.count),
                             out.pairs ? " pair" : " sample", samples.count == 1 ? " " : "s ", what,
                             "; the first is in ", samples.first));
}

struct Encoded {
  std::vector<uint32_t> ids;
  int64_t begin = 0;  // tokens of the prompt
  std::vector<std::pair<int64_t, int64_t>> silent = {};
};

// Cuts samples to their length, and counts what that costs.
class Gathered {
 public:
  Gathered(const std::string& path, const PromptOptions& options) : path_(path), options_(options) {
    out_.pairs = !options.rejected.empty();
  }

  // A sample, or the two of a pair: both are kept, with the same tokens of the prompt, or none.
  // `place` returns their place in the file.
  template <class Place>
  void add(std::span<Encoded> both, const Place& place) {
    const auto count = [&](Counted& kind) {
      if (kind.count++ == 0) kind.first = place();
    };
    int64_t over = 0, prompt = std::numeric_limits<int64_t>::max();
    for (const Encoded& s : both) {
      over = std::max(over, std::ssize(s.ids) - options_.max_length);
      prompt = std::min(prompt, s.begin);
    }
    if (over > 0 && options_.truncation == Truncation::kStart) {
      for (Encoded& s : both) lose_start(s, over, prompt);
    }
    const auto length_of = [&](const Encoded& s) {
      return std::min(std::ssize(s.ids), options_.max_length);
    };
    // The first token is never a target.
    const auto has_no_target = [&](const Encoded& s) {
      return std::max<int64_t>(s.begin, 1) >= length_of(s);
    };
    if (std::ranges::any_of(both, has_no_target) ||
        (over > 0 && options_.truncation == Truncation::kDrop)) {
      return count(dropped_);
    }
    const auto kept = [&](const Encoded& s) { return std::span(s.ids).first(length_of(s)); };
    if (both.size() == 2 && std::ranges::equal(kept(both[0]), kept(both[1]))) return count(equal_);
    if (over > 0) count(cut_);
    for (Encoded& s : both) push(s, length_of(s));
  }

  // `warnings` come before those of here.
  PromptSamples finish(std::vector<std::string> warnings) {
    COMPACT_CHECK(!out_.ids.empty(), path_,
                  out_.pairs ? ": no pair has two answers with a token of their own within "
                             : ": no sample has a token of its completion within ",
                  options_.max_length, " tokens, prompt and end included");
    out_.warnings = std::move(warnings);
    out_.cut = cut_.count;
    using enum Truncation;
    warn(out_, path_, cut_,
         cat("lost tokens at ", options_.truncation == kStart ? "the prompt's start" : "the end",
             " to have at most ", options_.max_length));
    warn(out_, path_, dropped_,
         cat("dropped: ",
             options_.truncation == kDrop ? "more than" : "no token of the completion within", " ",
             options_.max_length, " tokens"));
    warn(out_, path_, equal_, "dropped: both answers are the same tokens");
    return std::move(out_);
  }

 private:
  // Takes `over` tokens off the start of a prompt of so many, but for `begin`.
  void lose_start(Encoded& s, int64_t over, int64_t prompt) {
    const bool begins = std::ranges::equal(
        options_.begin, std::span(s.ids).first(std::min(s.ids.size(), options_.begin.size())));
    const int64_t kept = begins ? std::ssize(options_.begin) : 0;
    const int64_t lost = std::min(over, std::max<int64_t>(prompt - kept, 0));
    s.ids.erase(s.ids.begin() + kept, s.ids.begin() + kept + lost);
    s.begin -= lost;
    for (auto& [from, to] : s.silent) from -= lost, to -= lost;
  }

  void push(Encoded& s, int64_t length) {
    std::erase_if(s.silent, [&](const auto& range) { return range.first >= length; });
    if (!s.silent.empty()) s.silent.back().second = std::min(s.silent.back().second, length);
    bytes_ += static_cast<size_t>(length) * sizeof(int32_t) + sizeof(std::vector<int32_t>) +
              sizeof(s.silent) + s.silent.size() * sizeof(s.silent[0]);
    COMPACT_CHECK(bytes_ <= kMostPromptBytes, path_, ": must give at most ",
                  format_bytes(kMostPromptBytes), " of tokens, gives more");
    out_.ids.emplace_back(s.ids.begin(), s.ids.begin() + length);
    out_.prompt_lengths.push_back(s.begin);
    out_.silent.push_back(std::move(s.silent));
  }

  const std::string& path_;
  const PromptOptions& options_;
  PromptSamples out_;
  Counted cut_, dropped_, equal_;
  size_t bytes_ = 0;
};

void check_tokens(const Tokenizer& tokenizer, const PromptOptions& options) {
  COMPACT_CHECK(options.max_length >= 2, "[prompts] the length must be at least 2, is ",
                options.max_length);
  COMPACT_CHECK(tokenizer.vocabulary() - 1 <= std::numeric_limits<int32_t>::max(),
                "[prompts] tokens must be below 2^31, the vocabulary has ", tokenizer.vocabulary());
}

}  // namespace

PromptSamples read_prompts(const std::string& path, const Tokenizer& tokenizer,
                           const PromptOptions& options) {
  check_tokens(tokenizer, options);
  const auto table = open_table(path, {.strict = options.strict});
  std::vector<std::string> columns = {options.prompt};
  if (!table->has(options.prompt)) columns = split(options.prompt, ',');
  const size_t prompts = columns.size();
  columns.push_back(options.completion);
  if (!options.rejected.empty()) columns.push_back(options.rejected);
  table->choose(columns);
  const bool has_input = options.prompt == "instruction" && options.completion != "input" &&
                         table->choose_also("input");
  Gathered gathered(path, options);
  Counted across;
  const std::vector<uint32_t> ends = tokenizer.ends();
  const auto place = [&] { return table->where().substr(path.size() + 2); };
  std::vector<TableCell> cells;
  OddOnes odd(options.strict, path, "rows");
  int64_t rows = 0;
  bool more = true;
  while (more) {
    std::string asked;
    const auto read = [&] {
      more = table->next(cells);
      for (size_t i = 0; more && i < columns.size(); ++i) {
        const bool optional = i > 0 && i < prompts;
        if (cells[i].kind != TableCell::kText &&
            !(optional && cells[i].kind == TableCell::kMissing)) {
          throw OddOne(cat(table->where(), " must have a text `", columns[i], "`"));
        }
        if (i >= prompts || cells[i].text.empty()) continue;
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
    std::vector<Encoded> both;
    for (size_t i = prompts; i < columns.size(); ++i) {
      Encoded& s = both.emplace_back(Encoded{encoded(asked + cells[i].text)});
      s.begin = std::ranges::mismatch(prompt, s.ids).in1 - prompt.begin();
      const bool ended =
          std::ssize(s.ids) > s.begin && std::ranges::find(ends, s.ids.back()) != ends.end();
      if (!ended) s.ids.push_back(tokenizer.end_of_text());
    }
    // A token of a pair that is another in one of the two is an answer's in both.
    const int64_t begin = std::ranges::min(both, {}, &Encoded::begin).begin;
    for (Encoded& s : both) s.begin = begin;
    if (begin < std::ssize(prompt) && across.count++ == 0) across.first = place();
    gathered.add(both, place);
  }
  std::vector<std::string> warnings;
  if (std::string line = odd.finish(rows); !line.empty()) warnings.push_back(std::move(line));
  PromptSamples out = gathered.finish(std::move(warnings));
  warn(out, path, across, "with a token across the end of the prompt; it counts as completion");
  if (table->replaced().count > 0) out.warnings.push_back(table->replaced().line());
  return out;
}

PromptSamples read_token_samples(const std::string& path, const Tokenizer& tokenizer,
                                 const PromptOptions& options) {
  check_tokens(tokenizer, options);
  const TokenFile file(path);
  file.check_tokenizer(tokenizer);
  COMPACT_CHECK(file.info().samples, path,
                ": holds text, not samples: --task language-modeling trains on it");
  const bool pairs = !options.rejected.empty();
  COMPACT_CHECK(file.info().pairs == pairs, path, ": holds ",
                pairs ? "samples, not pairs of a chosen and a rejected one: --task "
                        "prompt-completion trains on it"
                      : "pairs of a chosen and a rejected sample: --task preference trains on it");
  Gathered gathered(path, options);
  int64_t number = 0;
  std::vector<Encoded> both;
  Encoded own;
  const auto finish = [&] {
    if (own.ids.empty()) return;
    ++number;
    if (own.begin == 0) own.begin = std::ssize(own.ids);  // no target
    both.push_back(std::move(own));
    own = {};
    if (pairs && both.size() == 1) return;
    gathered.add(both, [&] { return pairs ? cat("pair ", number / 2) : cat("sample ", number); });
    both.clear();
  };
  std::vector<int64_t> part;
  for (int64_t at = 0; at < file.count(); at += static_cast<int64_t>(part.size())) {
    part.resize(static_cast<size_t>(std::min(file.count() - at, kTokensAtOnce)));
    file.copy(at, part);
    COMPACT_CHECK(at > 0 || (part[0] & kSampleBegin) != 0, path,
                  ": the first token must begin a sample");
    for (const int64_t token : part) {
      if ((token & kSampleBegin) != 0) finish();
      auto& [ids, begin, silent] = own;
      const int64_t place = std::ssize(ids);
      ids.push_back(static_cast<uint32_t>(token & (kSampleBegin - 1)));
      if (place == 0) continue;  // never a target
      const bool target = (token & kTarget) != 0;
      if (target && begin == 0) begin = place;
      if (target || begin == 0) continue;
      if (silent.empty() || silent.back().second != place) silent.emplace_back(place, place);
      ++silent.back().second;
    }
  }
  finish();
  COMPACT_CHECK(both.empty(), path, ": pairs must be an even number of samples, are ", number);
  return gathered.finish({});
}

PromptDataset::PromptDataset(std::shared_ptr<const PromptSamples> samples,
                             std::vector<int64_t> chosen, Padding padding, uint64_t seed,
                             bool packed)
    : samples_(std::move(samples)), chosen_(std::move(chosen)), padding_(padding) {
  COMPACT_CHECK(!chosen_.empty(), "[prompts] no samples");
  COMPACT_CHECK(padding.multiple > 0,
                "[prompts] lengths must be multiples of a positive number, is ", padding.multiple);
  const int64_t count = samples_->size();
  COMPACT_CHECK(!samples_->pairs || !packed, "[prompts] pairs cannot be packed");
  std::vector<int64_t> lengths;
  for (const int64_t number : chosen_) {
    COMPACT_CHECK(number >= 0 && number < count, "[prompts] a number must be within ", count,
                  ", is ", number);
  }
  if (samples_->pairs) {
    std::vector<int64_t> both;
    for (const int64_t pair : chosen_) {
      begins_.push_back(both.size());
      both.insert(both.end(), {2 * pair, 2 * pair + 1});
    }
    begins_.push_back(both.size());
    chosen_ = std::move(both);
  }
  for (const int64_t number : chosen_) {
    const auto length = static_cast<int64_t>(samples_->ids[static_cast<size_t>(number)].size());
    COMPACT_CHECK(length >= 2 && length - 1 <= padding.max_length, "[prompts] sample ", number,
                  " must have from 2 to ", padding.max_length + 1, " tokens, has ", length);
    longest_sample_ = std::max(longest_sample_, length - 1);
    inputs_ += length - 1;
    if (packed) lengths.push_back(length - 1);
  }
  longest_ = longest_sample_;
  if (packed) {
    const auto rows =
        packed_rows(lengths, padding.max_length, derive(seed, label_of("prompts.packed", 14)));
    std::vector<int64_t> in_rows;
    begins_ = {0};
    for (const std::vector<int64_t>& row : rows) {
      for (const int64_t i : row) in_rows.push_back(chosen_[static_cast<size_t>(i)]);
      begins_.push_back(in_rows.size());
    }
    chosen_ = std::move(in_rows);
  }
  for (size_t row = 0; row + 1 < begins_.size(); ++row) {
    longest_ = std::max(longest_, row_inputs(static_cast<int64_t>(row)));
  }
  if (samples_->pairs) reference_ = at::zeros({std::ssize(begins_) - 1, 2}, at::kDouble);
  begin(begins_.empty() ? this->samples() : std::ssize(begins_) - 1, seed);
}

std::span<const int64_t> PromptDataset::of_row(int64_t row) const {
  const auto place = static_cast<size_t>(row);
  if (begins_.empty()) return std::span(chosen_).subspan(place, 1);
  return std::span(chosen_).subspan(begins_[place], begins_[place + 1] - begins_[place]);
}

int64_t PromptDataset::row_inputs(int64_t row) const {
  int64_t sum = 0;
  for (const int64_t number : of_row(row)) {
    sum += std::ssize(samples_->ids[static_cast<size_t>(number)]) - 1;
  }
  return sum;
}

void PromptDataset::set_reference(const at::Tensor& log_probs) {
  COMPACT_CHECK(samples_->pairs && log_probs.sizes() == reference_.sizes(),
                "[prompts] a reference must be [", size(), ", 2] of pairs, is ", log_probs.sizes());
  reference_.copy_(log_probs);
}

double PromptDataset::padding_share(int64_t batch) const {
  int64_t all = 0;
  const std::vector<int64_t> rows = order(0);
  for (int64_t first = 0; first < size(); first += batch) {
    const int64_t count = std::min(batch, size() - first);
    int64_t longest = 0;
    for (int64_t i = first; i < first + count; ++i) {
      longest = std::max(longest, row_inputs(rows[static_cast<size_t>(i)]));
    }
    all += count * padding_.length_for(longest);
  }
  return 1 - static_cast<double>(inputs_) / static_cast<double>(all);
}

Batch PromptDataset::collect(std::span<const Sample> samples) const {
  const auto count = static_cast<int64_t>(samples.size());
  int64_t longest = 0;
  for (const Sample& s : samples) longest = std::max(longest, row_inputs(s.number));
  const int64_t length = padding_.length_for(longest);
  Batch out{at::full({count, length}, padding_.pad, at::kLong),
            at::full({count, length}, kIgnoredTarget, at::kLong)};
  for (int64_t row = 0; row < count; ++row) {
    int64_t begin = 0;
    for (const int64_t number : of_row(samples[static_cast<size_t>(row)].number)) {
      int64_t* const input = out.input.mutable_data_ptr<int64_t>() + row * length + begin;
      int64_t* const target = out.target.mutable_data_ptr<int64_t>() + row * length + begin;
      const auto place = static_cast<size_t>(number);
      const std::vector<int32_t>& ids = samples_->ids[place];
      const int64_t first = std::max<int64_t>(1, samples_->prompt_lengths[place]);
      std::copy(ids.begin(), ids.end() - 1, input);
      std::copy(ids.begin() + first, ids.end(), target + first - 1);
      if (place < samples_->silent.size()) {
        for (const auto& [from, to] : samples_->silent[place]) {
          std::fill(target + from - 1, target + to - 1, kIgnoredTarget);
        }
      }
      const int64_t end = begin + std::ssize(ids) - 1;
      if (!begins_.empty()) out.ranges.push_back({row, begin, end});
      begin = end;
    }
  }
  if (!samples_->pairs) return out;
  out.losses = count;
  out.more = {at::empty({count, 2}, at::kDouble)};
  for (int64_t row = 0; row < count; ++row) {
    out.more[0].select(0, row).copy_(
        reference_.select(0, samples[static_cast<size_t>(row)].number));
  }
  return out;
}

}  // namespace compact
