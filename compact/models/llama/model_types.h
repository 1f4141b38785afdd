// SPDX-License-Identifier: Apache-2.0
// The model types of decoders of LLaMA's kind, as transformers' classes have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "compact/models/llama/config.h"
#include "compact/models/rope_json.h"

namespace compact {

// How far back tokens attend: no such setting; always; where use_sliding_window says so, in the
// layers that layer_types names.
enum class AttentionWindow : uint8_t { kNone, kAlways, kSwitched };

// A model_type: the defaults and settings in which the classes of transformers differ.
struct DecoderFamily {
  const char *type, *architecture;
  // Where keys are missing, and what its blocks always have. kv_heads 0: as many as heads; head_dim
  // 0: hidden / heads, and the key is for other widths.
  LlamaConfig config = {};
  bool says_head_dim = false;  // a key of its own
  bool biases = false;         // attention_bias
  bool mlp_biases = false;     // mlp_bias
  AttentionWindow window = AttentionWindow::kNone;
  std::optional<int64_t> window_size = std::nullopt;
  int64_t window_layers = 0;  // max_window_layers; 0: layers without rotary positions
  bool multipliers = false;   // embedding, residual, attention, logits
  bool some_turn = false;     // no_rope_layers
  RopeForm rope = {};
};

// The table.
const std::vector<DecoderFamily>& decoder_families();
// Throws InputError beginning with `where` on another model_type.
const DecoderFamily& decoder_family(std::string_view type, std::string_view where);

}  // namespace compact
