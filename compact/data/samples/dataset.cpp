// SPDX-License-Identifier: Apache-2.0
#include "compact/data/samples/dataset.h"

#include <numeric>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {

void Dataset::begin(int64_t size, uint64_t seed) {
  size_ = size;
  seed_ = seed;
  seek({});
}

Permutation Dataset::order_of(int64_t epoch) const {
  const uint64_t key = derive(seed_, label_of("data.order", 10));
  return {static_cast<uint64_t>(size_), derive(key, static_cast<uint64_t>(epoch))};
}

Batch Dataset::next(int64_t batch) {
  COMPACT_CHECK(batch > 0, "batch size must be positive, is ", batch);
  const uint64_t key = derive(seed_, label_of("data.sample", 11));
  std::vector<Sample> samples;
  for (int64_t b = 0; b < batch; ++b) {
    const auto index = static_cast<uint64_t>(position_.index);
    samples.push_back({.number = static_cast<int64_t>(order_(index)),
                       .key = derive(derive(key, static_cast<uint64_t>(position_.epoch)), index)});
    if (++position_.index == size_) seek({position_.epoch + 1, 0});
  }
  return collect(samples);
}

Batch Dataset::peek(int64_t batch) {
  const DataPosition here = position_;
  Batch result = next(batch);
  seek(here);
  return result;
}

Batch Dataset::in_order(int64_t first, int64_t count) const {
  COMPACT_CHECK(count > 0, "batch size must be positive, is ", count);
  COMPACT_CHECK(first >= 0 && count <= size_ && first <= size_ - count, "samples [", first, ", ",
                first, " + ", count, ") must be within ", size_);
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbered(numbers);
}

Batch Dataset::numbered(std::span<const int64_t> numbers) const {
  std::vector<Sample> samples;
  for (const int64_t number : numbers) {
    COMPACT_CHECK(number >= 0 && number < size_, "a sample's number must be within ", size_,
                  ", is ", number);
    samples.push_back({.number = number, .training = false});
  }
  return collect(samples);
}

std::vector<int64_t> Dataset::order(int64_t epoch) const {
  const Permutation place = order_of(epoch);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < size_; ++i) {
    numbers.push_back(static_cast<int64_t>(place(static_cast<uint64_t>(i))));
  }
  return numbers;
}

void Dataset::skip(int64_t samples) {
  COMPACT_CHECK(samples >= 0, "samples to skip must not be negative, are ", samples);
  const int64_t index = position_.index + samples % size_;
  seek({position_.epoch + samples / size_ + index / size_, index % size_});
}

void Dataset::seek(DataPosition position) {
  COMPACT_CHECK(position.epoch >= 0 && position.index >= 0 && position.index < size_,
                "a data position must have epoch >= 0 and index in [0, ", size_, "), is (",
                position.epoch, ", ", position.index, ")");
  position_ = position;
  order_ = order_of(position.epoch);
}

}  // namespace compact
