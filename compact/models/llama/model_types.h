// SPDX-License-Identifier: Apache-2.0
// The model types of decoders of LLaMA's kind, as transformers' classes have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "compact/models/rope_json.h"
#include "compact/networks/block_shape.h"

namespace compact {

// How far back tokens attend: no such setting; always; where use_sliding_window says so, in the
// layers that layer_types names.
enum class AttentionWindow : uint8_t { kNone, kAlways, kSwitched };

// What transformers' classes differ in: settings, and their defaults.
struct DecoderFamily {
  const char *type, *architecture;
  double eps = 1e-6;
  int64_t positions = 2048;
  bool tied = false;
  int64_t kv_heads = 0;        // 0: as many as heads
  int64_t head_dim = 0;        // 0: hidden_size / heads, and the key is for other widths
  bool says_head_dim = false;  // a key of its own
  bool biases = false;         // attention_bias
  bool mlp_biases = false;     // mlp_bias
  BlockShape block = {};       // what its blocks always have, beside their sizes
  AttentionWindow window = AttentionWindow::kNone;
  std::optional<int64_t> window_size = std::nullopt;
  int64_t window_layers = 0;  // max_window_layers; 0: layers without rotary positions
  std::optional<int64_t> bos = std::nullopt, eos = std::nullopt, pad = std::nullopt;
  bool multipliers = false;  // embedding, residual, attention, logits
  bool some_turn = false;    // no_rope_layers
  RopeForm rope = {};
};

// The table.
const std::vector<DecoderFamily>& decoder_families();
// Throws InputError beginning with `where` on another model_type.
const DecoderFamily& decoder_family(std::string_view type, std::string_view where);

}  // namespace compact
