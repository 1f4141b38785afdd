// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of model_type `llama`, in the forms of transformers 4 (rope_theta,
// torch_dtype) and 5 (rope_parameters, dtype). What CompAct's model does not compute is refused.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "compact/base/llama_config.h"

namespace compact {

// InputError beginning with `where`: a missing or wrong size, another model_type or activation,
// biases, dropout, scaled or partial rotary positions, quantized weights, two values for one thing.
// Keys that do not change what the model computes are ignored; num_key_value_heads, head_dim and
// the rest default as in transformers.
LlamaConfig llama_config_from_json(const nlohmann::json& json, std::string_view where);
// `path`: the file, or the folder that holds config.json.
LlamaConfig read_llama_config(const std::filesystem::path& path);

// An object that transformers 4.40 and later and 5 load.
nlohmann::json llama_config_to_json(const LlamaConfig& config);

}  // namespace compact
