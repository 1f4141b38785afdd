// SPDX-License-Identifier: Apache-2.0
// What the tasks of classifiers share.
#pragma once

#include <memory>

#include "compact/models/classifier.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"

namespace compact {

// Makes a `Net` of this shape.
template <class Net, class Shape>
Task::MakeNetwork classifier_of(const Shape& shape) {
  return [shape](const TrainConfig& c, const Policy& policy, at::Device device) {
    return std::make_unique<Net>(shape, policy,
                                 ClassifierOptions{.device = device,
                                                   .dtype = dtype_of(c.dtype),
                                                   .seed = key_of(c, RandomUse::kWeights),
                                                   .label_smoothing = c.label_smoothing_factor});
  };
}

}  // namespace compact
