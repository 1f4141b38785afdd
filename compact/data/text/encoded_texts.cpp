// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/encoded_texts.h"

#include <algorithm>
#include <limits>
#include <span>

#include "compact/base/check.h"

namespace compact {
namespace {

void append(std::span<const uint32_t> tokens, std::vector<int32_t>& to) {
  for (const uint32_t token : tokens) {
    COMPACT_CHECK(token <= static_cast<uint32_t>(std::numeric_limits<int32_t>::max()),
                  "[texts] a token must be below 2^31, is ", token);
    to.push_back(static_cast<int32_t>(token));
  }
}

}  // namespace

std::pair<int64_t, int64_t> longest_first(int64_t first, int64_t second, int64_t room) {
  if (first + second <= room) return {first, second};
  const int64_t shorter = std::min({first, second, room / 2}), longer = room - shorter;
  return first > second ? std::pair{longer, shorter} : std::pair{shorter, longer};
}

EncodedTexts encode_texts(const LabelledTexts& texts, const EncodeText& encode,
                          const SequenceFormat& format, int64_t max_length) {
  const bool pair = !texts.second.empty();
  const size_t count = texts.first.size();
  COMPACT_CHECK(texts.labels.size() == count && (!pair || texts.second.size() == count),
                "[texts] must be as many labels and second texts as first ones, are ",
                texts.labels.size(), ", ", texts.second.size(), " and ", count);
  const auto special = static_cast<int64_t>(format.begin.size() + format.end.size() +
                                            (pair ? format.middle.size() : 0));
  const int64_t room = max_length - special;
  COMPACT_CHECK(room >= (pair ? 2 : 1), "[texts] the length must be at least ",
                special + (pair ? 2 : 1), ", the special tokens and one of each text, is ",
                max_length);
  EncodedTexts out{.labels = texts.labels};
  out.ids.reserve(count);
  out.second_begin.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::vector<uint32_t> a = encode(texts.first[i]);
    const std::vector<uint32_t> b = pair ? encode(texts.second[i]) : std::vector<uint32_t>();
    const auto a_size = static_cast<int64_t>(a.size()), b_size = static_cast<int64_t>(b.size());
    const auto [a_kept, b_kept] =
        pair ? longest_first(a_size, b_size, room) : std::pair{std::min(a_size, room), int64_t{0}};
    out.cut += a_kept < a_size || b_kept < b_size;

    std::vector<int32_t>& ids = out.ids.emplace_back();
    ids.reserve(static_cast<size_t>(special + a_kept + b_kept));
    append(format.begin, ids);
    append(std::span(a).first(static_cast<size_t>(a_kept)), ids);
    if (pair) append(format.middle, ids);
    const size_t second = ids.size();
    append(std::span(b).first(static_cast<size_t>(b_kept)), ids);
    append(format.end, ids);
    out.second_begin.push_back(
        static_cast<int64_t>(pair && format.second_type ? second : ids.size()));
  }
  return out;
}

}  // namespace compact
