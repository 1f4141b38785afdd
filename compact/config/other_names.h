// SPDX-License-Identifier: Apache-2.0
// Options of Hugging Face's Trainer and TRL, and other words that people try, and their names here.
#pragma once

#include <string>
#include <string_view>

namespace compact {

// "here it is --dtype bfloat16" for `bf16`, and for a value "optim adamw_8bit" what it is here;
// empty for an unknown name.
std::string name_here(std::string_view name);

}  // namespace compact
