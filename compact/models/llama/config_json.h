// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of decoders of LLaMA's kind, in the forms of transformers 4
// (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype). What CompAct's model does
// not compute is refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "compact/models/llama/config.h"

namespace compact {

// InputError beginning with `where`: a missing or wrong size, another model_type or activation,
// dropout, quantized weights, a setting of another model type that has not the value which does
// nothing, two values for one thing. Keys that do not change what the model computes are ignored;
// those that are missing default as in transformers.
LlamaConfig llama_config_from_json(const nlohmann::json& json, std::string_view where);

// An object of the same model_type that transformers 4.40 and later and 5 load.
nlohmann::json llama_config_to_json(const LlamaConfig& config);

}  // namespace compact
