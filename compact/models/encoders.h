// SPDX-License-Identifier: Apache-2.0
// The table of encoders by name.
#pragma once

#include <span>
#include <string>

#include "compact/base/encoder_config.h"

namespace compact {

struct EncoderInfo {
  std::string name, summary;
  EncoderConfig config;  // without labels
};
std::span<const EncoderInfo> encoders();
// Throws InputError with a suggestion on an unknown name.
const EncoderInfo& encoder_named(const std::string& name);

}  // namespace compact
