// SPDX-License-Identifier: Apache-2.0
// The rotary positions of a decoder's config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compact/base/rope_config.h"
#include "compact/io/config_keys.h"

namespace compact {

// The rules for rotary positions in which model types differ.
struct RopeForm {
  double theta = 10000;  // where there is none
  // Phi-3's: a part of a head may be turned; longrope alone, once called su and yarn, whose
  // original_max_position_embeddings lies beside it.
  bool phi3 = false;
};

// From rope_scaling, rope_parameters and the keys beside them. InputError on keys given twice with
// different values, on another type and on a key that does not belong to the type.
RopeConfig read_rope(const ConfigKeys& keys, const RopeForm& form, int64_t max_positions);

// Adds what transformers 4 and 5 read.
void write_rope(const RopeConfig& rope, const RopeForm& form, nlohmann::json& config);

}  // namespace compact
