// SPDX-License-Identifier: Apache-2.0
// The backend of the meta device: does nothing, so that a step can be planned without memory.
#include "compact/kernels/kernels.h"

namespace compact::kernels {
namespace {

template <class Args>
void nothing(const Args&, const Launch&) {}

}  // namespace

#define X(name, Args) nothing<Args>,
extern const Backend meta_backend = {"meta", Device::kMeta, COMPACT_KERNELS(X)};
#undef X

}  // namespace compact::kernels
