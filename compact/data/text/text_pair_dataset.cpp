// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/text_pair_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"

namespace compact {
namespace {

constexpr int64_t kIgnored = -100;
constexpr float kMostPairClasses = 1 << 24;  // that floats can count

}  // namespace

TextPairDataset::TextPairDataset(std::shared_ptr<const EncodedTexts> texts,
                                 std::vector<int64_t> chosen, Padding padding, TextTarget target,
                                 uint64_t seed)
    : texts_(std::move(texts)), chosen_(std::move(chosen)), padding_(padding), target_(target) {
  COMPACT_CHECK(!chosen_.empty(), "[texts] no texts");
  COMPACT_CHECK(padding.multiple > 0, "[texts] lengths must be multiples of a positive number, is ",
                padding.multiple);
  const auto count = static_cast<int64_t>(texts_->ids.size());
  for (const int64_t number : chosen_) {
    COMPACT_CHECK(number >= 0 && number < count, "[texts] a number must be within ", count, ", is ",
                  number);
    const auto i = static_cast<size_t>(number);
    const auto length = static_cast<int64_t>(texts_->ids[i].size());
    COMPACT_CHECK(length > 0 && length <= padding.max_length, "[texts] text ", number,
                  " must have from 1 to ", padding.max_length, " tokens, has ", length);
    longest_ = std::max(longest_, length);
    const float label = texts_->labels[i];
    COMPACT_CHECK(target == TextTarget::kValue || std::isnan(label) ||
                      (label >= 0 && label < kMostPairClasses && label == std::floor(label)),
                  "[texts] the label of text ", number, " must be a class's number, is ", label);
  }
  begin(static_cast<int64_t>(chosen_.size()), seed);
}

Batch TextPairDataset::collect(std::span<const Sample> samples) const {
  const auto count = static_cast<int64_t>(samples.size());
  const auto text_of = [&](const Sample& s) { return static_cast<size_t>(chosen_[s.number]); };
  size_t longest = 0;
  for (const Sample& s : samples) longest = std::max(longest, texts_->ids[text_of(s)].size());
  const int64_t length = padding_.length_for(static_cast<int64_t>(longest));
  const bool classes = target_ == TextTarget::kClass;
  Batch out{at::full({count, length}, padding_.pad, at::kLong),
            at::empty({count}, classes ? at::kLong : at::kFloat),
            {at::zeros({count, length}, at::kLong), at::empty({count}, at::kLong)}};
  int64_t* input = out.input.mutable_data_ptr<int64_t>();
  int64_t* types = out.more[0].mutable_data_ptr<int64_t>();
  int64_t* const lengths = out.more[1].mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < count; ++b, input += length, types += length) {
    const size_t i = text_of(samples[b]);
    const std::vector<int32_t>& ids = texts_->ids[i];
    std::copy(ids.begin(), ids.end(), input);
    lengths[b] = static_cast<int64_t>(ids.size());
    std::fill(types + std::min(texts_->second_begin[i], lengths[b]), types + lengths[b], 1);
    const float label = texts_->labels[i];
    if (classes) {
      out.target.mutable_data_ptr<int64_t>()[b] =
          std::isnan(label) ? kIgnored : static_cast<int64_t>(label);
    } else {
      out.target.mutable_data_ptr<float>()[b] = label;
    }
  }
  return out;
}

}  // namespace compact
