// SPDX-License-Identifier: Apache-2.0
// Encoded texts, single or in pairs, as batches that are as long as the longest text in them.
#pragma once

#include <memory>
#include <vector>

#include "compact/data/samples/dataset.h"
#include "compact/data/text/encoded_texts.h"
#include "compact/data/text/padding.h"

namespace compact {

enum class TextTarget { kClass, kValue };

// Batches: input int64 [batch, length], padded on the right; more[0] token types int64 [batch,
// length], 0 in the padding; more[1] lengths int64 [batch], without padding; target [batch], int64
// classes, -100 where there is no label, or float values, NaN where there is none.
class TextPairDataset final : public Dataset {
 public:
  // The texts whose numbers are in `chosen`. Throws InputError where there are none, one is empty
  // or longer than padding.max_length, or a label is not a class number.
  TextPairDataset(std::shared_ptr<const EncodedTexts> texts, std::vector<int64_t> chosen,
                  Padding padding, TextTarget target, uint64_t seed);

  int64_t longest_row() const { return padding_.length_for(longest_); }  // of any batch
  const EncodedTexts& texts() const { return *texts_; }

 private:
  Batch collect(std::span<const Sample> samples) const override;

  std::shared_ptr<const EncodedTexts> texts_;
  std::vector<int64_t> chosen_;
  Padding padding_;
  TextTarget target_;
  int64_t longest_ = 0;  // sample
};

}  // namespace compact
