// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace compact {

// Bytes held for graphs that are alive: of one pass, and, as its parent, of all passes of a scope.
class LiveBytes {
 public:
  explicit LiveBytes(std::shared_ptr<LiveBytes> above = nullptr) : above_(std::move(above)) {}
  void add(int64_t bytes) {
    bytes_ += bytes;
    if (above_) above_->add(bytes);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::atomic<int64_t> bytes_ = 0;
  std::shared_ptr<LiveBytes> above_;
};

}  // namespace compact
