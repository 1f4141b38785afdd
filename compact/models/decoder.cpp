// SPDX-License-Identifier: Apache-2.0
#include "compact/models/decoder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {

Decoder::Decoder(const LanguageModel& model, int64_t capacity) : model_(model), cache_(capacity) {
  COMPACT_CHECK(capacity <= model.options().max_length,
                "[decode] capacity must be from 1 to the model's max_length ",
                model.options().max_length, ", is ", capacity);
}

at::Tensor Decoder::append(std::span<const int64_t> ids) {
  const auto more = static_cast<int64_t>(ids.size());
  COMPACT_CHECK(more > 0, "[decode] append needs at least one token");
  COMPACT_CHECK(length() + more <= capacity(), "[decode] ", length(), " + ", more,
                " tokens are more than the capacity ", capacity());
  const int64_t vocabulary = model_.tokens().vocabulary;
  for (const int64_t id : ids) {
    COMPACT_CHECK(id >= 0 && id < vocabulary, "[decode] a token id must be below ", vocabulary,
                  ", is ", id);
  }
  const bool far = model_.is_far(length() + more);
  if (far != far_) cache_.truncate(0);  // the cache is of other rotary tables
  far_ = far;
  std::vector<int64_t> fresh(ids_.begin() + cache_.length(), ids_.end());
  fresh.insert(fresh.end(), ids.begin(), ids.end());
  const at::Tensor rows = at::tensor(fresh, at::kLong).unsqueeze(0);
  at::Tensor logits = model_.logits_of_last(rows.to(model_.device()), cache_);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  return logits;
}

void Decoder::truncate(int64_t length) {
  // A pass that failed may have left fewer.
  COMPACT_CHECK(length >= 0 && length <= this->length(), "[decode] cannot go back to ", length,
                " tokens, there are ", this->length());
  cache_.truncate(std::min(length, cache_.length()));
  ids_.resize(static_cast<size_t>(length));
}

}  // namespace compact
