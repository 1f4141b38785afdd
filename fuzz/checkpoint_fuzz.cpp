// SPDX-License-Identifier: Apache-2.0
// A checkpoint whose state, manifest included, is any JSON with a checksum that fits.
#include <nlohmann/json.hpp>

#include "compact/io/checkpoint.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/train/run_state_json.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static const std::filesystem::path path = save_checkpoint(
      fuzz::folder().path(), 7, {.config = {}, .trainer_state = nlohmann::json::object()});
  static const nlohmann::json sound = read_json(path / "trainer_state.json");
  const bool forged = fuzz::choice(bytes, 2) == 1;
  std::string text(bytes);
  if (forged) {
    const bool readable = fuzz::accepted([&] {
      nlohmann::json state = parse_json(bytes, "state");
      if (!state.is_object()) fail("no object");
      if (!state.contains("checkpoint")) state["checkpoint"] = sound["checkpoint"];
      if (!state["checkpoint"].is_object()) fail("no object");
      state["checkpoint"].erase("xxh3");
      state["checkpoint"]["xxh3"] = xxh3(state.dump());
      text = json_text(state, "state");
    });
    if (!readable) return;
  }
  fuzz::folder().file("checkpoint-7/trainer_state.json", text);
  const auto reason = verify_checkpoint(path);
  for (const bool verified : {false, true}) {
    const bool opened = fuzz::accepted([&] {
      const OpenCheckpoint open = open_checkpoint(path, verified);
      run_state_from_json(open.trainer_state, "state");
    });
    fuzz::require(!opened || verified || !reason);
  }
}
