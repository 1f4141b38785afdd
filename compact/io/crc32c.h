// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli, RFC 3720) and the masked form in which record files hold it.
#pragma once

#include <cstdint>
#include <string_view>

namespace compact {

uint32_t crc32c(std::string_view bytes);

// Rotated and shifted, so that a CRC over data that holds CRCs stays useful (TensorFlow's
// record_writer).
inline uint32_t mask_crc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace compact
