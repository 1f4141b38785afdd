// SPDX-License-Identifier: Apache-2.0
// The measured speed of a machine, remembered in a file between runs.
#pragma once

#include <string>

#include "compact/plan/speed.h"

namespace compact {

// The entry of `folder`/speed.json under the key, where it is usable, else the result of `measure`,
// which is then written there with the time and the processor's name. An entry of another processor
// is measured again. A file that cannot be read is made again; one that cannot be written is left.
// Empty folder: nothing is remembered. `origin` becomes words for a line: when that was, and the
// file; after 30 days also what is to be done.
MeasuredSteps remembered_steps(const std::string& folder, const std::string& key,
                               FunctionRef<bool(const MeasuredSteps&)> usable,
                               FunctionRef<MeasuredSteps()> measure, std::string& origin);

}  // namespace compact
