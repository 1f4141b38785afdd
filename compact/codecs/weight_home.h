// SPDX-License-Identifier: Apache-2.0
// Weights that are in memory only while a segment reads them: otherwise another process has them
// (ZeRO's stage 3), or they are held in codes, in another type or in other memory. Their reader
// fetches them before and releases them after.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace compact {

// Weights are fetched by groups, which are numbered: all weights of a segment, or, in a home that
// makes its weights from those of an earlier home, each weight by itself. Where a run has several
// processes, all make the same calls in the same order.
class WeightHome {
 public:
  virtual ~WeightHome() = default;
  // When it returns, the weights of a group are in memory, until release() was called as often as
  // fetch(). May also begin to fetch the next group in the direction of the pass.
  virtual void fetch(int group, bool backward) = 0;
  virtual void release(int group) = 0;
  // The tensors that stand for a weight while it is not in memory, each with a storage of its own.
  // An earlier home may free their memory until it fetches them.
  virtual std::vector<at::Tensor> held(const at::Tensor& /*weight*/) const { return {}; }
};

struct WeightPlace {
  std::shared_ptr<WeightHome> home;
  int group = 0;
  bool by_product = false;  // fetched by each product that reads it, not for its segment's pass
  bool operator==(const WeightPlace&) const = default;
};

// free_memory() frees the storage of a tensor that shares it with no other, but keeps the tensor:
// reads then fault instead of returning stale data. allocate_memory() allocates it, uninitialized.
void free_memory(const at::Tensor& t);
void allocate_memory(const at::Tensor& t);
// Exchanges the memory of two tensors, each of which has all of its storage: all that share a
// storage see the other's memory from then on.
void exchange_memory(const at::Tensor& a, const at::Tensor& b);
// The first columns of some rows of a matrix that may have no memory now.
at::Tensor part_of_matrix(const at::Tensor& matrix, int64_t row, int64_t rows, int64_t columns);

}  // namespace compact
