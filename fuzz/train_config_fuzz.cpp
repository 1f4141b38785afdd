// SPDX-License-Identifier: Apache-2.0
// A configuration file of a run, TOML or JSON. What is taken reads back the same.
#include "compact/config/config.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const char* ending = fuzz::choice(bytes, 2) == 0 ? ".toml" : ".json";
  const std::string path = fuzz::folder().file(std::string("run") + ending, bytes);
  TrainConfig config;
  if (!fuzz::accepted([&] { read_config_file(config, path); })) return;
  TrainConfig again;
  std::string text;
  // Text that is no UTF-8 cannot be written as JSON.
  if (!fuzz::accepted([&] { text = config_json(config); })) return;
  again = config_from_json(text, "again");
  fuzz::require(config_json(again) == text);
  TrainConfig third;
  read_config_file(third, fuzz::folder().file("again.toml", config_toml(config)));
  fuzz::require(config_json(third) == text);
}
