// SPDX-License-Identifier: Apache-2.0
#include "compact/data/dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {
namespace {

Batch empty_batch(int64_t batch, int64_t block_size) {
  return {at::empty({batch, block_size}, at::kLong), at::empty({batch, block_size}, at::kLong)};
}

}  // namespace

std::pair<TokenRange, TokenRange> split_end(int64_t count, double fraction) {
  COMPACT_CHECK(fraction > 0 && fraction < 1, "validation_split must be above 0 and below 1, is ",
                fraction);
  const int64_t held_out = static_cast<int64_t>(static_cast<double>(count) * fraction);
  return {{0, count - held_out}, {count - held_out, count}};
}

BlockDataset::BlockDataset(std::shared_ptr<const TokenFile> file, TokenRange range,
                           int64_t block_size, uint64_t seed)
    : file_(std::move(file)),
      range_(range),
      block_size_(block_size),
      key_(derive(seed, label_of("data.order", 10))) {
  COMPACT_CHECK(block_size > 0, "block_size must be positive, is ", block_size);
  COMPACT_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= file_->count(),
                file_->path(), ": tokens [", range.begin, ", ", range.end, ") must be within ",
                file_->count());
  const int64_t tokens = range.end - range.begin;
  COMPACT_CHECK(tokens > block_size, file_->path(), ": block_size ", block_size, " needs at least ",
                static_cast<uint64_t>(block_size) + 1, " tokens, there are ", tokens);
  blocks_ = (tokens - 1) / block_size;
  order_ = order_of(0);
}

BlockDataset::BlockDataset(std::shared_ptr<const TokenFile> file, int64_t block_size, uint64_t seed)
    : BlockDataset(file, TokenRange{0, file->count()}, block_size, seed) {}

Permutation BlockDataset::order_of(int64_t epoch) const {
  return {static_cast<uint64_t>(blocks_), derive(key_, static_cast<uint64_t>(epoch))};
}

void BlockDataset::copy_block(int64_t block, int64_t* input, int64_t* target) const {
  const auto size = static_cast<size_t>(block_size_);
  const int64_t begin = range_.begin + block * block_size_;
  file_->copy(begin, {input, size});
  file_->copy(begin + 1, {target, size});
}

Batch BlockDataset::next(int64_t batch) {
  COMPACT_CHECK(batch > 0, "batch size must be positive, is ", batch);
  Batch out = empty_batch(batch, block_size_);
  int64_t* const input = out.input.mutable_data_ptr<int64_t>();
  int64_t* const target = out.target.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < batch; ++b) {
    const uint64_t block = order_(static_cast<uint64_t>(position_.index));
    copy_block(static_cast<int64_t>(block), input + b * block_size_, target + b * block_size_);
    if (++position_.index == blocks_) seek({position_.epoch + 1, 0});
  }
  return out;
}

Batch BlockDataset::in_order(int64_t first, int64_t count) const {
  COMPACT_CHECK(count > 0, "batch size must be positive, is ", count);
  COMPACT_CHECK(first >= 0 && count <= blocks_ && first <= blocks_ - count, "blocks [", first, ", ",
                first, " + ", count, ") must be within ", blocks_);
  Batch out = empty_batch(count, block_size_);
  int64_t* const input = out.input.mutable_data_ptr<int64_t>();
  int64_t* const target = out.target.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < count; ++b) {
    copy_block(first + b, input + b * block_size_, target + b * block_size_);
  }
  return out;
}

void BlockDataset::seek(DataPosition position) {
  COMPACT_CHECK(position.epoch >= 0 && position.index >= 0 && position.index < blocks_,
                "a data position must have epoch >= 0 and index in [0, ", blocks_, "), is (",
                position.epoch, ", ", position.index, ")");
  position_ = position;
  order_ = order_of(position.epoch);
}

}  // namespace compact
