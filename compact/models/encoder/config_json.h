// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of model_type `bert` and `roberta` with a head for sequences. What
// CompAct's encoder does not compute is refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "compact/models/encoder/config.h"

namespace compact {

// InputError beginning with `where`: a missing or wrong size, another model_type, activation or
// kind of positions, a decoder. Labels come from id2label, else num_labels; without either there
// are two. Keys that do not change what the model computes are ignored.
EncoderConfig encoder_config_from_json(const nlohmann::json& json, std::string_view where);

// An object that transformers loads as a ...ForSequenceClassification. `dtype`: of the weights.
nlohmann::json encoder_config_to_json(const EncoderConfig& config,
                                      const std::string& dtype = "float32");

}  // namespace compact
