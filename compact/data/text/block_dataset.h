// SPDX-License-Identifier: Apache-2.0
// Blocks of tokens. Block i of a range is its tokens [i*S, i*S + S] with S = block_size: S inputs
// and, one further, S next-token targets. A rest of fewer than S + 1 tokens at the end is not used.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "compact/data/samples/dataset.h"
#include "compact/data/text/token_file.h"

namespace compact {

// Tokens [begin, end) of a token file.
struct TokenRange {
  int64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

// All but the last `fraction` of `count` tokens, and those (rounded down): training and validation.
// Throws InputError unless 0 < fraction < 1.
std::pair<TokenRange, TokenRange> split_end(int64_t count, double fraction);

// Batches: int64 [batch, block_size]; target[b, t] follows input[b, t].
class BlockDataset final : public Dataset {
 public:
  // Throws InputError, with both numbers, where the range holds no block.
  BlockDataset(std::shared_ptr<const TokenFile> file, TokenRange range, int64_t block_size,
               uint64_t seed);
  // The whole file.
  BlockDataset(std::shared_ptr<const TokenFile> file, int64_t block_size, uint64_t seed);

  int64_t blocks() const { return size(); }
  int64_t block_size() const { return block_size_; }
  const TokenFile& file() const { return *file_; }

 private:
  Batch collect(std::span<const Sample> samples) const override;

  std::shared_ptr<const TokenFile> file_;
  TokenRange range_;
  int64_t block_size_;
};

}  // namespace compact
