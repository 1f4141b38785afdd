// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/token_cache.h"

#include <ATen/ATen.h>

#include "compact/base/check.h"

namespace compact {

TokenCache::TokenCache(int64_t capacity) : capacity_(capacity) {
  COMPACT_CHECK(capacity > 0, "[decode] capacity must be at least 1, is ", capacity);
}

std::pair<at::Tensor, at::Tensor> TokenCache::append(const void* reader, const at::Tensor& keys,
                                                     const at::Tensor& values) {
  const int64_t tokens = keys.size(2);
  COMPACT_CHECK(keys.size(0) == 1 && length_ + tokens <= capacity_, "[decode] ", keys.size(0),
                " sequences, ", length_, " + ", tokens, " tokens: room is for one of ", capacity_);
  Kept& kept = kept_[reader];
  if (!kept.keys.defined()) {
    const std::vector<int64_t> sizes = {1, keys.size(1), capacity_, keys.size(3)};
    kept = {at::empty(sizes, keys.options()), at::empty(sizes, keys.options())};
  }
  kept.keys.narrow(2, length_, tokens).copy_(keys);
  kept.values.narrow(2, length_, tokens).copy_(values);
  return {kept.keys.narrow(2, 0, length_ + tokens), kept.values.narrow(2, 0, length_ + tokens)};
}

void TokenCache::truncate(int64_t length) {
  COMPACT_CHECK(length >= 0 && length <= length_, "[decode] cannot keep ", length, " of ", length_,
                " tokens");
  length_ = length;
}

}  // namespace compact
