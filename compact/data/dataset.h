// SPDX-License-Identifier: Apache-2.0
// Blocks of tokens in a keyed random order. Block i of a range is its tokens [i*S, i*S + S] with
// S = block_size: S inputs and, one further, S next-token targets. A rest of fewer than S + 1
// tokens at the end is not used. The order of an epoch is a permutation keyed by (seed, epoch), so
// that a position is two numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "compact/data/permutation.h"
#include "compact/data/token_file.h"

namespace compact {

// Tokens [begin, end) of a token file.
struct TokenRange {
  int64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

// All but the last `fraction` of `count` tokens, and those (rounded down): training and validation.
// Throws InputError unless 0 < fraction < 1.
std::pair<TokenRange, TokenRange> split_end(int64_t count, double fraction);

struct Batch {
  at::Tensor input, target;  // int64, CPU, [batch, block_size]; target[b, t] follows input[b, t]
};

// The block that comes next: number `index` in the order of `epoch`, both from 0.
struct DataPosition {
  int64_t epoch = 0, index = 0;
  bool operator==(const DataPosition&) const = default;
};

class BlockDataset {
 public:
  // Throws InputError, with both numbers, where the range holds no block.
  BlockDataset(std::shared_ptr<const TokenFile> file, TokenRange range, int64_t block_size,
               uint64_t seed);
  // The whole file.
  BlockDataset(std::shared_ptr<const TokenFile> file, int64_t block_size, uint64_t seed);

  int64_t blocks() const { return blocks_; }  // in an epoch
  int64_t block_size() const { return block_size_; }
  const TokenFile& file() const { return *file_; }

  // The next `batch` blocks. A batch goes on into the next epoch: in each epoch every block comes
  // exactly once, and no batch is short. Throws InputError unless batch > 0.
  Batch next(int64_t batch);
  // `count` blocks from `first` on in the order of the file, for evaluation. Throws InputError
  // unless 0 <= first, 0 < count and first + count <= blocks().
  Batch in_order(int64_t first, int64_t count) const;

  // Where next() stands. seek(position()) on a data set made with the same arguments continues
  // exactly. Throws InputError on a position that does not exist.
  DataPosition position() const { return position_; }
  void seek(DataPosition position);

 private:
  void copy_block(int64_t block, int64_t* input, int64_t* target) const;
  Permutation order_of(int64_t epoch) const;

  std::shared_ptr<const TokenFile> file_;
  TokenRange range_;
  int64_t block_size_, blocks_ = 0;
  uint64_t key_;
  DataPosition position_;
  Permutation order_{1, 0};
};

}  // namespace compact
