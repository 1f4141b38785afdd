// SPDX-License-Identifier: Apache-2.0
// Samples in a keyed random order: the order of an epoch is a permutation keyed by (seed, epoch),
// so that a position is two numbers, and what is random about a sample is keyed by its place.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compact/data/samples/permutation.h"

namespace compact {

// On the CPU. What `input` and `target` are is the data set's to say; `more` is what a model reads
// beside them, as the edges of graphs. `ranges`: the sequences of rows that have several, each
// (row, begin, end), in order; empty: each row is one.
struct Batch {
  at::Tensor input, target;
  std::vector<at::Tensor> more = {};
  std::vector<std::array<int64_t, 3>> ranges = {};
  std::optional<int64_t> losses = {};  // how many there are, where that is not one a target
};

// The sample that comes next: number `index` in the order of `epoch`, both from 0.
struct DataPosition {
  int64_t epoch = 0, index = 0;
  bool operator==(const DataPosition&) const = default;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  int64_t size() const { return size_; }  // samples in an epoch

  // The next `batch` samples. A batch goes on into the next epoch: in each epoch every sample comes
  // exactly once, and no batch is short. Throws InputError unless batch > 0.
  Batch next(int64_t batch);
  // The same samples stay to come.
  Batch peek(int64_t batch);
  // `count` samples from `first` on in their own order, for evaluation: nothing about them is
  // random. Throws InputError unless 0 <= first, 0 < count and first + count <= size().
  Batch in_order(int64_t first, int64_t count) const;
  // The samples of these numbers, otherwise the same.
  Batch numbered(std::span<const int64_t> numbers) const;

  // Where next() stands. seek(position()) on a data set made with the same arguments continues
  // exactly. Throws InputError on a position that does not exist.
  DataPosition position() const { return position_; }
  void seek(DataPosition position);
  // Goes past so many samples, at least 0.
  void skip(int64_t samples);
  // The numbers of an epoch's samples in its order.
  std::vector<int64_t> order(int64_t epoch) const;
  // Epochs up to a position, for example 1.5.
  double epochs(DataPosition position) const {
    return static_cast<double>(position.epoch) +
           static_cast<double>(position.index) / static_cast<double>(size_);
  }

 protected:
  struct Sample {
    int64_t number = 0;    // in [0, size)
    bool training = true;  // as next() gives it; what is random about it comes from `key`
    uint64_t key = 0;
  };
  Dataset() = default;
  // To be called once the size, above 0, is known.
  void begin(int64_t size, uint64_t seed);
  virtual Batch collect(std::span<const Sample> samples) const = 0;

 private:
  Permutation order_of(int64_t epoch) const;

  int64_t size_ = 0;
  uint64_t seed_ = 0;
  DataPosition position_;
  Permutation order_{1, 0};
};

}  // namespace compact
