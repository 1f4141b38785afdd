// SPDX-License-Identifier: Apache-2.0
// The header of a token file as bytes: what reader and writer share (token_file.h has the layout).
#pragma once

#include <span>
#include <string>

#include "compact/data/text/token_file.h"

namespace compact {

// Bytes from the start of the file to its first id.
size_t token_header_size(size_t spec_length);

// The header, checksum included.
std::string encode_token_header(const TokenFileInfo& info);

// The longest header that a file may have, in bytes.
size_t longest_token_header();

// Reads the header of a file of `size` bytes that begins with `head`, all of it or at least
// longest_token_header() bytes, without trusting any of it. Throws InputError, starting with
// `path`, on the first rule that does not hold, the file's size included.
TokenFileInfo decode_token_header(std::span<const unsigned char> head, uint64_t size,
                                  const std::string& path);

}  // namespace compact
