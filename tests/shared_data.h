// SPDX-License-Identifier: Apache-2.0
// Files of the data that tests take from $COMPACT_DATA; where they are not there, tests are
// skipped.
#pragma once

#include <cstdlib>
#include <string>

namespace compact {

inline std::string shared_data(const std::string& name) {
  const char* const folder = std::getenv("COMPACT_DATA");
  return std::string(folder ? folder : COMPACT_SOURCE_DIR "/../shared/data") + "/" + name;
}

}  // namespace compact
