// SPDX-License-Identifier: Apache-2.0
// Merges LoRA adapters into the model that they were trained with.
#pragma once

#include <string>
#include <vector>

namespace compact {

// Writes the model of `base` (empty: the one that the adapters name), with the adapters' products
// added, into `output`: tensors keep their types, other files are copied. Works for any family,
// since tensors have the names of modules. Throws InputError where the folders do not fit together,
// and where `output` is not empty.
void merge(const std::string& adapters, const std::string& base, const std::string& output,
           std::vector<std::string>& warnings);

}  // namespace compact
