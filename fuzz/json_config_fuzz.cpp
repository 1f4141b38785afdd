// SPDX-License-Identifier: Apache-2.0
// JSON text, and what it says of a model.
#include <nlohmann/json.hpp>

#include "compact/io/hf_config.h"
#include "compact/io/hf_encoder_config.h"
#include "compact/io/json_file.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  fuzz::accepted([&] {
    const nlohmann::json json = parse_json(bytes, "config.json");
    fuzz::accepted([&] { fuzz::require(parse_json(json_text(json, "again"), "again") == json); });
    fuzz::accepted([&] {
      const EncoderConfig config = encoder_config_from_json(json, "config.json");
      encoder_config_from_json(encoder_config_to_json(config), "again");
    });
    const LlamaConfig config = llama_config_from_json(json, "config.json");
    fuzz::require(llama_config_from_json(llama_config_to_json(config), "again") == config);
  });
}
