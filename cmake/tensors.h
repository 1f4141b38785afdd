// SPDX-License-Identifier: Apache-2.0
// Precompiled for layers that know tensors and call few operations on them.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>
