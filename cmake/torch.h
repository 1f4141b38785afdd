// SPDX-License-Identifier: Apache-2.0
// Precompiled for layers and tests that call operations of torch.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>
