// SPDX-License-Identifier: Apache-2.0
// The characters that byte-level BPE writes bytes as in its files (GPT-2's bytes_to_unicode): those
// that print stand for themselves, the others are U+0100 and up, a space is U+0120.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace compact {

// The bytes that `token` (well-formed UTF-8) stands for; nothing where a character stands for none.
std::optional<std::string> alphabet_bytes(std::string_view token);

}  // namespace compact
