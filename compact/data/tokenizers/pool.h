// SPDX-License-Identifier: Apache-2.0
// Objects that only one thread may use at a time (caches, compiled patterns), lent out and taken
// back, so that a const object can keep them from call to call.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace compact {

template <class T>
class Pool {
 public:
  class Loan {
   public:
    Loan(Pool& pool, std::unique_ptr<T> object) : pool_(pool), object_(std::move(object)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(object_));
    }
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

  // One that is free, or what `make` returns (a std::unique_ptr<T>).
  template <class Make>
  Loan borrow(Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<T> object = std::move(free_.back());
        free_.pop_back();
        return Loan(*this, std::move(object));
      }
    }
    return Loan(*this, make());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace compact
