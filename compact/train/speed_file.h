// SPDX-License-Identifier: Apache-2.0
// What was measured of a machine's speed, remembered in a file between runs.
#pragma once

#include <string>

#include "compact/plan/speed.h"

namespace compact {

// What `folder`/speed.json has under the key, where it is usable, else what `measure` gives, which
// is then written there. A file that cannot be read is made again, one that cannot be written is
// left. Empty folder: nothing is remembered.
MeasuredSteps remembered_steps(const std::string& folder, const std::string& key,
                               FunctionRef<bool(const MeasuredSteps&)> usable,
                               FunctionRef<MeasuredSteps()> measure);

}  // namespace compact
