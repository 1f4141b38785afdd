// SPDX-License-Identifier: Apache-2.0
// The header of a token file as bytes: what reader and writer share (token_file.h has the layout).
#pragma once

#include <span>
#include <string>

#include "compact/data/token_file.h"

namespace compact {

// Bytes from the start of the file to its first id.
size_t token_header_size(size_t spec_length);

// The header, checksum included.
std::string encode_token_header(const TokenFileInfo& info);

// Reads the header of a file whose bytes are `file`, without trusting any of it. Throws InputError,
// starting with `path`, on the first rule that does not hold, the file's size included.
TokenFileInfo decode_token_header(std::span<const unsigned char> file, const std::string& path);

}  // namespace compact
