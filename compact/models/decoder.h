// SPDX-License-Identifier: Apache-2.0
// Token by token use of a trained language model: keys and values of earlier tokens are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compact/models/language_model.h"

namespace compact {

// Where a model reads long sequences by other rotary tables, the cache is computed again when the
// sequence becomes long.
class Decoder {
 public:
  // For one sequence of up to `capacity` tokens; the cache takes 2 * layers * capacity * key/value
  // width elements of the model's type. The model must outlive it and not change. Throws InputError
  // unless 0 < capacity <= the model's max_length.
  Decoder(const LanguageModel& model, int64_t capacity);

  // Appends tokens (one, or a whole prompt at once) and returns the logits of what follows the last
  // one, [vocabulary] in the model's type: those of LanguageModel::logits up to rounding. Throws
  // InputError on no tokens, on an id outside the vocabulary and where the capacity does not
  // suffice.
  at::Tensor append(std::span<const int64_t> ids);
  // Forgets all tokens but the first `length`. Throws InputError where there are fewer.
  void truncate(int64_t length);

  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  int64_t capacity() const { return cache_.capacity(); }

 private:
  const LanguageModel& model_;
  TokenCache cache_;
  std::vector<int64_t> ids_;  // what is kept is of these
  bool far_ = false;          // as in a long sequence
};

}  // namespace compact
