// SPDX-License-Identifier: Apache-2.0
#include "compact/config/version.h"

namespace compact {

const char* version() { return COMPACT_VERSION; }
const char* torch_version() { return COMPACT_TORCH_VERSION; }

}  // namespace compact
