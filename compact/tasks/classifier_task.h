// SPDX-License-Identifier: Apache-2.0
// What the tasks of classifiers share.
#pragma once

#include <memory>

#include "compact/models/classifier.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"

namespace compact {

// How the task's network is made: a `Net` of this shape, by the run's settings.
template <class Net, class Shape>
void set_classifier(const TrainConfig& c, const Shape& shape, Task& task) {
  const ClassifierOptions options{.dtype = dtype_of(c.dtype),
                                  .seed = key_of(c, RandomUse::kWeights),
                                  .label_smoothing = c.label_smoothing_factor};
  task.network = [shape, options](const Policy& policy, at::Device device) {
    ClassifierOptions here = options;
    here.device = device;
    return std::make_unique<Net>(shape, policy, here);
  };
}

}  // namespace compact
