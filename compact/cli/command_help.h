// SPDX-License-Identifier: Apache-2.0
// The help of commands as text, for programs that make pages and shells' completion of it.
#pragma once

#include <string>

#include "compact/cli/commands.h"

namespace compact::cli {

// The output of `compact COMMAND --help=FORM`; see flags.h for the forms.
std::string help_of(const Command& command, const std::string& form);

}  // namespace compact::cli
