// SPDX-License-Identifier: Apache-2.0
// JSON text, and what it says of a model.
#include <nlohmann/json.hpp>

#include "compact/io/json_file.h"
#include "compact/models/families.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  fuzz::accepted([&] {
    const nlohmann::json json = parse_json(bytes, "config.json");
    fuzz::accepted([&] { fuzz::require(parse_json(json_text(json, "again"), "again") == json); });
    for (const FamilyInfo* family : families()) {
      fuzz::accepted([&] {
        const nlohmann::json told = family->read(json, "config.json")->to_json("float32");
        fuzz::require(family->read(told, "again")->to_json("float32") == told);
      });
    }
  });
}
