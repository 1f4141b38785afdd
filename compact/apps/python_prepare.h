// SPDX-License-Identifier: Apache-2.0
// Calls python/compact/prepare for data sets, tokenizers and chat templates that Hugging Face's
// libraries read and the program does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace compact {

// The first arguments of a call of it: the Python of the active environment, of the .venv beside
// the program or of the path, the first with the packages it needs. Throws InputError where there
// is none, which begins with `why` and names a way out.
std::vector<std::string> prepare_command(const std::string& why);

// The tokens of a chat, as the template of the tokenizer in `folder` renders them, with what asks
// for an answer. `chat`: what a user says, or JSON: a list of messages, or an object with
// `messages` and perhaps `tools`. Throws InputError with its reason where that is refused.
std::vector<uint32_t> chat_prompt(const std::string& chat, const std::string& folder);

}  // namespace compact
