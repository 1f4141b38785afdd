// SPDX-License-Identifier: Apache-2.0
// A network that gives logits: their cross-entropy with classes (int64) or, of one output, its
// squared error from values (f32), and what it saves, held as a policy says: in segments by their
// slots, around plain operations by a scope. Under a policy without slot lines
// (`off`) tensors are saved as plain PyTorch saves them.
#pragma once

#include "compact/models/network.h"

namespace compact {

struct ClassifierOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 0;           // of weights
  double label_smoothing = 0;  // part of a target that is spread over all classes
};

class Classifier : public Network {
 public:
  // [samples, classes]. In training, batch norms use the batch's statistics and move their own, and
  // dropout is drawn.
  virtual at::Tensor logits(const Tensors& inputs, const Pass& pass,
                            SegmentReport* report = nullptr) const = 0;

  // Throws InputError where a pattern of the policy is for no slot, which is known once plain
  // operations have run: not again for a report that a pass has filled.
  at::Tensor loss(const Tensors& inputs, const at::Tensor& target, const Pass& pass,
                  PassReport* report = nullptr) const override;
  Score score(const Tensors& inputs, const at::Tensor& target) const override;
  at::Device device() const override { return options_.device; }
  at::ScalarType dtype() const override { return options_.dtype; }
  void set_codecs(const Policy& policy) override;

 protected:
  // The keys of a pass's dropout between segments, one after another.
  class DropoutKeys {
   public:
    explicit DropoutKeys(const Pass& pass);
    uint64_t next();
    // x with each element zeroed with probability p and divided by 1 - p else.
    at::Tensor drop(const at::Tensor& x, double p);

   private:
    uint64_t key_, drawn_ = 0;
  };

  Classifier(Policy policy, const ClassifierOptions& options);
  // To be called once all parameters are there: gives them their carriers. Throws InputError where
  // the policy asks for what they cannot have.
  void finish();

  at::TensorOptions tensor_options() const {
    return at::TensorOptions().device(options_.device).dtype(options_.dtype);
  }
  // A trainable tensor of fused products of `parts` equal parts; biases and norms (one dimension)
  // have no weight decay.
  Parameter* parameter(const std::string& name, const at::Tensor& value, bool hidden = false,
                       int64_t parts = 1);
  // Normal values of this variance, keyed by seed and name.
  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double variance) const;

 private:
  // f32, over the targets that are not ignored.
  static at::Tensor loss_sum(const at::Tensor& y, const at::Tensor& target, double smoothing);
  uint64_t key_of(const std::string& name) const;
  void check_slots(const SavedTensorReport& plain) const;

  Policy policy_, chosen_;  // chosen_: codecs given later
  ClassifierOptions options_;
  SavedTensorOptions saved_;
};

}  // namespace compact
