// SPDX-License-Identifier: Apache-2.0
// The table of encoders by name.
#pragma once

#include <span>
#include <string>

#include "compact/models/encoder/config.h"

namespace compact {

struct EncoderInfo {
  std::string name, summary;
  EncoderConfig config;  // without labels
};
std::span<const EncoderInfo> encoders();

}  // namespace compact
