// SPDX-License-Identifier: Apache-2.0
// Labelled images from files, read as hostile input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace compact {

struct LabelledImages {
  at::Tensor images;  // uint8 [count, channels, height, width]
  at::Tensor labels;  // int64 [count], in [0, classes)
  int64_t classes = 10;
  std::vector<std::string> class_names = {};  // of every class, or empty where the file has none
  std::vector<std::string> warnings = {};     // about the files, one line each
  std::vector<std::string> scaled = {};       // the same, about images brought to another size
};

// The same with labels as `names` numbers the classes. Unchanged where either has no names. Throws
// InputError on a class that is none of them.
LabelledImages with_classes(LabelledImages data, const std::vector<std::string>& names);

// CIFAR-10's binary form, one file after the other: records of a label and 3 x 32 x 32 bytes.
// Files may be compressed (`.gz`, `.xz`, `.zst`). Throws InputError with the file, the rule and the
// record on a file that is cut, a label above 9, and files of more than 2^20 images together.
LabelledImages read_cifar10(std::span<const std::string> paths);

// MNIST's idx form (Fashion-MNIST): a file of images [count, height, width] and one of labels.
// Throws InputError on another magic number, sizes that are zero, beyond 4,096 pixels a side or not
// those of the file, counts that differ, and a label of `classes` or more.
LabelledImages read_idx(const std::string& images, const std::string& labels, int64_t classes = 10);

}  // namespace compact
