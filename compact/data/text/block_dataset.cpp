// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/block_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "compact/base/check.h"

namespace compact {

std::pair<TokenRange, TokenRange> split_end(int64_t count, double fraction) {
  COMPACT_CHECK(fraction > 0 && fraction < 1, "validation_split must be above 0 and below 1, is ",
                fraction);
  const int64_t held_out = static_cast<int64_t>(static_cast<double>(count) * fraction);
  return {{0, count - held_out}, {count - held_out, count}};
}

BlockDataset::BlockDataset(std::shared_ptr<const TokenFile> file, TokenRange range,
                           int64_t block_size, uint64_t seed)
    : file_(std::move(file)), range_(range), block_size_(block_size) {
  COMPACT_CHECK(block_size > 0, "block_size must be positive, is ", block_size);
  COMPACT_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= file_->count(),
                file_->path(), ": tokens [", range.begin, ", ", range.end, ") must be within ",
                file_->count());
  const int64_t tokens = range.end - range.begin;
  COMPACT_CHECK(tokens > block_size, file_->path(), ": block_size ", block_size, " needs at least ",
                static_cast<uint64_t>(block_size) + 1, " tokens, there are ", tokens);
  begin((tokens - 1) / block_size, seed);
}

BlockDataset::BlockDataset(std::shared_ptr<const TokenFile> file, int64_t block_size, uint64_t seed)
    : BlockDataset(file, TokenRange{0, file->count()}, block_size, seed) {}

Batch BlockDataset::collect(std::span<const Sample> samples) const {
  const auto count = static_cast<int64_t>(samples.size());
  Batch out{at::empty({count, block_size_}, at::kLong), at::empty({count, block_size_}, at::kLong)};
  int64_t* input = out.input.mutable_data_ptr<int64_t>();
  int64_t* target = out.target.mutable_data_ptr<int64_t>();
  std::vector<int64_t> tokens(static_cast<size_t>(block_size_) + 1);
  for (const Sample& sample : samples) {
    file_->copy(range_.begin + sample.number * block_size_, tokens);
    input = std::copy(tokens.begin(), tokens.end() - 1, input);
    target = std::copy(tokens.begin() + 1, tokens.end(), target);
  }
  return out;
}

}  // namespace compact
