// SPDX-License-Identifier: Apache-2.0
// Token by token use of a trained LLaMA: keys and values of earlier tokens are kept, so that a new
// token costs one row of every product instead of the whole sequence again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compact/models/llama.h"

namespace compact {

// Where rotary positions of long sequences are others, what is kept is made anew when they become
// long.
class LlamaDecoder {
 public:
  // For one sequence of up to `capacity` tokens; the cache takes 2 * layers * capacity * key/value
  // width elements of the model's type. The model must outlive it and not change. Throws InputError
  // unless 0 < capacity <= the model's max_length.
  LlamaDecoder(const Llama& model, int64_t capacity);

  // Appends tokens (one, or a whole prompt at once) and returns the logits of what follows the last
  // one, [vocabulary] in the model's type: those of Llama::logits up to rounding. Throws InputError
  // on no tokens, on an id outside the vocabulary and where the capacity does not suffice.
  at::Tensor append(std::span<const int64_t> ids);
  // Forgets all tokens but the first `length`. Throws InputError where there are fewer.
  void truncate(int64_t length);

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }

 private:
  struct Cache {
    at::Tensor keys, values;  // [1, kv_heads, capacity, dim]
  };
  at::Tensor attend(const Cache& cache, const at::Tensor& qkv, size_t layer,
                    const RopeAngles& angles) const;
  // x [1, t, in] W^T + bias, which may be null.
  at::Tensor product(const at::Tensor& x, const Parameter* weight, const Parameter* bias) const;

  const Llama& model_;
  int64_t capacity_, length_ = 0;
  std::vector<int64_t> ids_;   // what is kept is of these
  std::vector<Cache> caches_;  // of each layer
  bool far_ = false;           // turned as in a long sequence
  std::shared_ptr<const Stage> norm_, head_norm_, linear_, biased_, swiglu_;
};

}  // namespace compact
