// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/text_stream.h"

#include <algorithm>

namespace compact {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// Tokens of context, for decoders that look at neighbours (spaces at the start of a text).
constexpr size_t kContext = 8;
// Most tokens held back because they end inside a character.
constexpr size_t kLongestWait = 8;

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const uint32_t> context)
    : tokenizer_(tokenizer) {
  const auto last = context.last(std::min(context.size(), kContext));
  tokens_.assign(last.begin(), last.end());
  given_ = tokens_.size();
}

std::string TextStream::add(uint32_t token) {
  tokens_.push_back(token);
  return advance(false);
}

std::string TextStream::advance(bool last) {
  const std::string before = tokenizer_.decode(std::span(tokens_).first(given_));
  const std::string all = tokenizer_.decode(tokens_);
  // A tokenizer that falls back to bytes decodes half a character as U+FFFD: wait for the rest.
  const bool incomplete = all.size() <= before.size() || all.ends_with(kReplacement);
  if (incomplete && !last && tokens_.size() - given_ < kLongestWait) return {};
  std::string out;
  if (all.size() > before.size()) {
    repair_.feed(std::string_view(all).substr(before.size()), out);
  }
  // Drops older context: the tokens just given out are that of the next ones.
  if (given_ > 0 && tokens_.size() > kContext) {
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<int64_t>(given_));
  }
  given_ = tokens_.size();
  return out;
}

std::string TextStream::finish() {
  std::string out = given_ < tokens_.size() ? advance(true) : std::string();
  repair_.finish(out);
  return out;
}

}  // namespace compact
