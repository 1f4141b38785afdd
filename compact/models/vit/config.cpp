// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/models/config_rows.h"
#include "compact/models/labels.h"
#include "compact/models/vit/vit.h"

namespace compact {

void keys_of(ConfigRows& rows, VitConfig& c) {
  const std::string& where = rows.where();
  rows.model_type({"vit"});
  rows.put("architectures", {"ViTForImageClassification"});
  rows.gelu("hidden_act", c.gelu_tanh);
  rows.choice("problem_type", {"single_label_classification"});
  rows.given.refuse_quantized();
  rows.size("hidden_size", c.hidden_size);
  rows.size("intermediate_size", c.intermediate_size);
  rows.layers("num_hidden_layers", c.num_hidden_layers);
  rows.size("num_attention_heads", c.num_attention_heads);
  rows.sides("image_size", c.height, c.width);
  int64_t across = c.patch_size;
  rows.sides("patch_size", c.patch_size, across);
  COMPACT_CHECK(c.patch_size == across, where, ": patch_size must be square, is ", c.patch_size,
                " x ", across);
  rows.size("num_channels", c.num_channels, ConfigRows::kOptional, 1024);
  check_heads(c.hidden_size, c.num_attention_heads, where);
  COMPACT_CHECK(c.height % c.patch_size == 0 && c.width % c.patch_size == 0, where,
                ": image_size must be multiples of patch_size ", c.patch_size, ", is ", c.height,
                " x ", c.width);
  rows.dropout("hidden_dropout_prob", c.hidden_dropout);
  rows.dropout("attention_probs_dropout_prob", c.attention_dropout);
  rows.positive("layer_norm_eps", c.layer_norm_eps);
  rows.positive("initializer_range", c.initializer_range);
  rows.flag("qkv_bias", c.qkv_bias);
  COMPACT_CHECK(c.classes >= 1 && c.classes <= kMostLabels, where,
                ": the number of labels must be from 1 to ", kMostLabels, ", is ", c.classes);
  COMPACT_CHECK(c.labels.empty() || static_cast<int64_t>(c.labels.size()) == c.classes, where,
                ": labels must be none or ", c.classes, ", are ", c.labels.size());
  class_rows(rows, c.classes, c.labels);
  for (const auto& [key, list] :
       {std::pair("image_mean", &c.image_mean), std::pair("image_std", &c.image_std)}) {
    rows.list(key, *list);
    COMPACT_CHECK(list->empty() || static_cast<int64_t>(list->size()) == c.num_channels, where,
                  ": ", key, " must have a value for each of ", c.num_channels, " channels, has ",
                  list->size());
    for (const double x : *list) {
      COMPACT_CHECK(std::isfinite(x), where, ": ", key, " must be finite, has ", x);
    }
  }
  for (const double x : c.image_std) check_positive({{"image_std", x}}, where);
  rows.put_dtypes();
}

}  // namespace compact
