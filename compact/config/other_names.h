// SPDX-License-Identifier: Apache-2.0
// What options of Hugging Face's Trainer and TRL, and other words that people try, are called here.
#pragma once

#include <string>
#include <string_view>

namespace compact {

// "here it is --dtype bfloat16" for `bf16`; empty where nothing is known of the name.
std::string name_here(std::string_view name);

}  // namespace compact
