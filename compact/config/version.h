// SPDX-License-Identifier: Apache-2.0
// Versions of the program and of what it was built with.
#pragma once

namespace compact {

const char* version();        // "0.1.0"
const char* torch_version();  // "2.13.0"

}  // namespace compact
