// SPDX-License-Identifier: Apache-2.0
// Frozen matrices that are held in NF4 and decoded for as long as one product reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "compact/codecs/nf4.h"
#include "compact/codecs/parameter.h"

namespace compact {

class Nf4Weights final : public WeightHome, public std::enable_shared_from_this<Nf4Weights> {
 public:
  // On the device of the weights that it is to hold, all with nested scales or none.
  Nf4Weights(bool nested, at::Device device);

  // Takes a parameter's weight, which is then here alone. `rows`: of each of its matrices that has
  // codes of its own, padding after each included.
  void take(Parameter& parameter, const std::vector<int64_t>& rows);
  // The codes of a matrix, given as a view of the parameter's weight without its padding (a model's
  // named tensor); null: it is none of these. It stays where it is.
  const Nf4* find(const at::Tensor& view) const;
  // Gives such a matrix other codes. Throws InputError where their form or their maps differ.
  void set(const at::Tensor& view, const Nf4& codes);
  bool nested() const { return nested_; }

  void fetch(int group, bool backward) override;
  void release(int group) override;
  std::vector<at::Tensor> held(const at::Tensor& weight) const override;

 private:
  struct One {
    at::Tensor weight;
    std::vector<at::Tensor> views;  // of the weight, without memory while it has none
    std::vector<Nf4> codes;         // of each view
    bool padded = false;
    int readers = 0;
  };
  bool nested_;
  at::Tensor maps_;
  bool maps_given_ = false;
  std::mutex mutex_;  // of readers
  std::vector<One> all_;
};

}  // namespace compact
