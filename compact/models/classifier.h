// SPDX-License-Identifier: Apache-2.0
// A network that gives logits: their cross-entropy with classes (int64) or, of one output, its
// squared error from values (f32), and what it saves, held as a policy says: in segments by their
// slots, around plain operations by a scope. Under a policy without slot lines
// (`off`) tensors are saved as plain PyTorch saves them.
#pragma once

#include "compact/models/network.h"
#include "compact/ops/policy.h"
#include "compact/ops/saved_tensors.h"

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
  virtual at::Tensor logits(const Tensors& inputs, bool training) const = 0;

  // The first one throws InputError where a pattern of the policy is for no slot: what is saved
  // outside of segments is known then.
  at::Tensor loss(const Tensors& inputs, const at::Tensor& target, double scale) const override;
  Score score(const Tensors& inputs, const at::Tensor& target) const override;
  at::Device device() const override { return options_.device; }
  std::vector<SlotBytes> slots() const override;
  int64_t saved_bytes() const override;
  void set_noise(uint64_t key) const override;
  std::vector<CodecTensor> codec_tensors(const Tensors& inputs) const override;
  void set_codecs(const Policy& policy) override;
  // What the latest forward pass saved outside of segments; under `off` the first one.
  const SavedTensorReport& report() const { return report_; }

 protected:
  Classifier(Policy policy, const ClassifierOptions& options);
  // To be called once all parameters are there: gives them their carriers. Throws InputError where
  // the policy asks for what they cannot have.
  void finish();

  at::TensorOptions tensor_options() const {
    return at::TensorOptions().device(options_.device).dtype(options_.dtype);
  }
  // A trainable tensor; biases and norms (one dimension) have no weight decay.
  Parameter parameter(const std::string& name, const at::Tensor& value) const;
  // Normal values of this variance, keyed by seed and name.
  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double variance) const;
  // Of the next dropout of this forward pass, from the noise key.
  uint64_t dropout_key() const;
  // x with each element zeroed with probability p and divided by 1 - p else.
  at::Tensor dropout(const at::Tensor& x, double p) const;

 private:
  // f32, over the targets that are not ignored.
  static at::Tensor loss_sum(const at::Tensor& y, const at::Tensor& target, double smoothing);
  uint64_t key_of(const std::string& name) const;

  Policy policy_, chosen_;  // chosen_: codecs given later
  ClassifierOptions options_;
  SavedTensorOptions saved_;
  mutable SavedTensorReport report_;
  mutable bool checked_ = false;  // the patterns of the policy
  mutable uint64_t noise_ = 0, draws_ = 0;
};

}  // namespace compact
