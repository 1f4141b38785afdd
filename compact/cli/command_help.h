// SPDX-License-Identifier: Apache-2.0
// What commands say of their flags, for what is made of it: pages and shells' completion.
#pragma once

#include <string>

#include "compact/cli/commands.h"

namespace compact::cli {

// What `compact COMMAND --help=FORM` prints; see flags.h for the forms.
std::string help_of(const Command& command, const std::string& form);

}  // namespace compact::cli
