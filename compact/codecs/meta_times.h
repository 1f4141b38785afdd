// SPDX-License-Identifier: Apache-2.0
// Operations on meta tensors that stand for several alike.
#pragma once

#include <cstdint>

namespace compact {

// While it lives, what this thread does to meta tensors stands for so many times the same: plans
// count its operations as often, its memory once.
class MetaTimes {
 public:
  explicit MetaTimes(int64_t times) : before_(active_) { active_ *= times; }
  ~MetaTimes() { active_ = before_; }
  MetaTimes(const MetaTimes&) = delete;
  MetaTimes& operator=(const MetaTimes&) = delete;
  static int64_t active() { return active_; }  // 1: none lives

 private:
  static inline thread_local int64_t active_ = 1;
  int64_t before_;
};

}  // namespace compact
