// SPDX-License-Identifier: Apache-2.0
// Canonical composition, as Qwen's tokenizers ask for it.
#pragma once

#include <string>
#include <string_view>

namespace compact {

// UTF-8 in normalization form NFC (Unicode Annex 15), by the characters that Hugging Face's library
// knows: those of Unicode 9.
std::string nfc(std::string_view text);

}  // namespace compact
