// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens that one sequence has so far, so that a new token costs one row of
// every product instead of the whole sequence again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace compact {

class TokenCache {
 public:
  // For up to `capacity` tokens, at least 1.
  explicit TokenCache(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  // Tokens kept so far: the position of the next pass's first token.
  int64_t length() const { return length_; }
  // Appends a pass's keys and values [1, kv_heads, tokens, dim] to those that this reader has, and
  // returns all of them, [1, kv_heads, length() + tokens, dim]. The first call takes memory for
  // capacity() tokens.
  std::pair<at::Tensor, at::Tensor> append(const void* reader, const at::Tensor& keys,
                                           const at::Tensor& values);
  // Ends a pass of so many tokens, which all readers have appended.
  void advance(int64_t tokens) { length_ += tokens; }
  // Forgets all tokens but the first `length`. Throws InputError where there are fewer.
  void truncate(int64_t length);

 private:
  struct Kept {
    at::Tensor keys, values;  // [1, kv_heads, capacity, dim]
  };
  int64_t capacity_, length_ = 0;
  std::map<const void*, Kept> kept_;
};

}  // namespace compact
