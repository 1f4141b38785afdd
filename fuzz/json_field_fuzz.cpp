// SPDX-License-Identifier: Apache-2.0
// One field of a line of JSON.
#include <string>

#include "compact/data/files/json_field.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  std::string text, error;
  const bool found = json_text_field(bytes, "text", text, error);
  fuzz::require(found == error.empty());
}
