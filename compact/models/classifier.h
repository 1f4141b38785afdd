// SPDX-License-Identifier: Apache-2.0
// A network that gives logits. Its loss is their cross-entropy with classes (int64) or, with one
// output, the squared error from values (f32). What it saves is held as a policy says: in segments
// by their slots, around plain operations by a scope. Under a policy without slot lines (`off`)
// tensors are saved as plain PyTorch saves them.
#pragma once

#include "compact/networks/network.h"

namespace compact {

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
  Score score(const Tensors& inputs, const at::Tensor& target,
              const at::Tensor& ranges = {}) const override;
  void set_codecs(const Policy& policy) override;

 protected:
  // Throws InputError where label_smoothing is not in [0, 1).
  Classifier(Policy policy, const NetworkOptions& options);
  // To be called once all parameters are there; see treat_parameters().
  void finish();

 private:
  // f32, over the targets that are not ignored.
  static at::Tensor loss_sum(const at::Tensor& y, const at::Tensor& target, double smoothing);
  void check_slots(const SavedTensorReport& plain) const;

  Policy chosen_;  // codecs given later
  SavedTensorOptions saved_;
};

}  // namespace compact
