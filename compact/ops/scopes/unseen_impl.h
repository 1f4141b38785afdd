// SPDX-License-Identifier: Apache-2.0
// While it lives, operations of this thread build no graph, are seen by no mode and no watcher, and
// are cast by no autocast.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace compact {

class Unseen {
 private:
  at::AutoDispatchBelowADInplaceOrView below_;
  c10::impl::ExcludeDispatchKeyGuard others_{
      c10::autocast_dispatch_keyset | c10::functorch_transforms_ks | c10::python_ks |
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                           c10::DispatchKey::Functionalize})};
  at::RecordFunctionGuard unseen_{false};
};

}  // namespace compact
