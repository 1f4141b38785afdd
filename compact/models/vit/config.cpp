// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/models/labels.h"
#include "compact/models/vit/vit.h"

namespace compact {
namespace {

using nlohmann::json;

// One number, or two of height and width.
std::pair<int64_t, int64_t> read_size(const ConfigKeys& keys, const char* key, int64_t usual) {
  const json* value = keys.find(key);
  if (!value || !value->is_array()) {
    const int64_t side = keys.integer(key, usual);
    return {side, side};
  }
  const auto sides = keys.required_list<int64_t>(key);
  COMPACT_CHECK(sides.size() == 2, keys.where(), ": ", key,
                " must be one number, or height and width, is ", value->dump());
  return {sides[0], sides[1]};
}

}  // namespace

void check_vit_config(const VitConfig& c, std::string_view where) {
  check_sizes({{"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"image_size", c.height},
               {"image_size", c.width},
               {"patch_size", c.patch_size},
               {"num_channels", c.num_channels}},
              where);
  check_heads(c.hidden_size, c.num_attention_heads, where);
  COMPACT_CHECK(c.height % c.patch_size == 0 && c.width % c.patch_size == 0, where,
                ": image_size must be multiples of patch_size ", c.patch_size, ", is ", c.height,
                " x ", c.width);
  check_dropouts({{"hidden_dropout_prob", c.hidden_dropout},
                  {"attention_probs_dropout_prob", c.attention_dropout}},
                 where);
  check_positive({{"layer_norm_eps", c.layer_norm_eps}, {"initializer_range", c.initializer_range}},
                 where);
  constexpr int64_t kMostClasses = 1 << 20;
  COMPACT_CHECK(c.classes >= 1 && c.classes <= kMostClasses, where,
                ": the number of labels must be from 1 to ", kMostClasses, ", is ", c.classes);
  COMPACT_CHECK(c.labels.empty() || static_cast<int64_t>(c.labels.size()) == c.classes, where,
                ": labels must be none or ", c.classes, ", are ", c.labels.size());
  for (const auto& [key, list] :
       {std::pair("image_mean", &c.image_mean), std::pair("image_std", &c.image_std)}) {
    COMPACT_CHECK(list->empty() || static_cast<int64_t>(list->size()) == c.num_channels, where,
                  ": ", key, " must have a value for each of ", c.num_channels, " channels, has ",
                  list->size());
    for (const double x : *list) {
      COMPACT_CHECK(std::isfinite(x), where, ": ", key, " must be finite, has ", x);
    }
  }
  for (const double x : c.image_std) check_positive({{"image_std", x}}, where);
}

VitConfig vit_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  const std::string type = keys.text("model_type", ""), act = keys.text("hidden_act", "gelu");
  COMPACT_CHECK(type == "vit", where, ": model_type must be vit, is `", type, "`");
  const bool tanh = act == "gelu_new" || act == "gelu_pytorch_tanh";
  COMPACT_CHECK(tanh || act == "gelu", where,
                ": hidden_act must be gelu, gelu_new or gelu_pytorch_tanh, is `", act, "`");
  const std::string problem = keys.text("problem_type", "single_label_classification");
  COMPACT_CHECK(problem == "single_label_classification", where,
                ": problem_type must be single_label_classification, is `", problem, "`");
  keys.refuse_quantized();
  VitConfig c;
  c.hidden_size = keys.integer("hidden_size", c.hidden_size);
  c.intermediate_size = keys.integer("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = keys.integer("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = keys.integer("num_attention_heads", c.num_attention_heads);
  std::tie(c.height, c.width) = read_size(keys, "image_size", c.height);
  const auto [down, across] = read_size(keys, "patch_size", c.patch_size);
  COMPACT_CHECK(down == across, where, ": patch_size must be square, is ", down, " x ", across);
  c.patch_size = down;
  c.num_channels = keys.integer("num_channels", c.num_channels);
  c.gelu_tanh = tanh;
  c.qkv_bias = keys.flag("qkv_bias", c.qkv_bias);
  c.layer_norm_eps = keys.number("layer_norm_eps", c.layer_norm_eps);
  c.hidden_dropout = keys.number("hidden_dropout_prob", c.hidden_dropout);
  c.attention_dropout = keys.number("attention_probs_dropout_prob", c.attention_dropout);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.labels = read_labels(keys);
  c.classes = static_cast<int64_t>(c.labels.size());
  if (c.labels == numbered_labels(c.classes)) c.labels.clear();
  if (keys.find("image_mean")) c.image_mean = keys.required_list<double>("image_mean");
  if (keys.find("image_std")) c.image_std = keys.required_list<double>("image_std");
  check_vit_config(c, where);
  return c;
}

json vit_config_to_json(const VitConfig& c, const std::string& dtype) {
  check_vit_config(c, "config");
  json object = {{"architectures", json::array({"ViTForImageClassification"})},
                 {"model_type", "vit"},
                 {"hidden_act", c.gelu_tanh ? "gelu_new" : "gelu"},
                 {"hidden_size", c.hidden_size},
                 {"intermediate_size", c.intermediate_size},
                 {"num_hidden_layers", c.num_hidden_layers},
                 {"num_attention_heads", c.num_attention_heads},
                 {"image_size", c.height == c.width ? json(c.height) : json{c.height, c.width}},
                 {"patch_size", c.patch_size},
                 {"num_channels", c.num_channels},
                 {"qkv_bias", c.qkv_bias},
                 {"layer_norm_eps", c.layer_norm_eps},
                 {"hidden_dropout_prob", c.hidden_dropout},
                 {"attention_probs_dropout_prob", c.attention_dropout},
                 {"initializer_range", c.initializer_range},
                 {"problem_type", "single_label_classification"},
                 {"image_mean", c.image_mean},
                 {"image_std", c.image_std},
                 {"torch_dtype", dtype},
                 {"dtype", dtype}};
  write_labels(c.labels.empty() ? numbered_labels(c.classes) : c.labels, object);
  return object;
}

}  // namespace compact
