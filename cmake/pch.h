// SPDX-License-Identifier: Apache-2.0
// Precompiled for every torch layer.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>
