// SPDX-License-Identifier: Apache-2.0
// Sums of gradients on the meta device.
#pragma once

#include <ATen/record_function.h>

namespace compact {

// Where several nodes of the graph read a tensor, the engine adds later gradients to the first one
// in place, if it alone holds that; but not on the meta device (at::isTensorSubclassLike is true of
// it), where each sum takes memory of its own. While one of these lives, sums of backward passes
// that this thread runs take none there, either. Only after register_meta_ops().
class InPlaceSums {
 public:
  InPlaceSums();
  ~InPlaceSums();
  InPlaceSums(const InPlaceSums&) = delete;
  InPlaceSums& operator=(const InPlaceSums&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace compact
