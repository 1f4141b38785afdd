// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/merge.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/io/adapter_folder.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/nf4_folder.h"
#include "compact/train/kept_files.h"

namespace compact {
namespace {

// The base's tensor of this name, with the values that the adapters were trained beside; of codes
// in f32, so that its sum with the adapters is rounded once.
at::Tensor whole_tensor(const ModelWeights& weights, const TensorEntry& entry,
                        const std::optional<ReadInNf4>& how) {
  if (has_nf4(weights, entry.name)) {
    const StoredNf4 stored = read_nf4(weights, entry.name);
    return decoded(stored.codes, how ? how->type : stored.type).to(at::kFloat);
  }
  const at::Tensor tensor = weights.read(entry.name);
  const bool through = how && is_coded(entry.name, entry.shape);
  return through ? through_nf4(tensor, *how).to(at::kFloat) : tensor;
}

}  // namespace

void merge(const std::string& from, const std::string& given_base, const std::string& output,
           std::vector<std::string>& warnings) {
  namespace fs = std::filesystem;
  COMPACT_CHECK(!from.empty() && !output.empty(),
                "--model_name_or_path DIR and --output_dir DIR are needed");
  COMPACT_CHECK(has_adapters(from), "--model_name_or_path ", from, ": has no ", kAdapterFile,
                ", so it is no folder of adapters");
  std::error_code ignored;
  COMPACT_CHECK(!fs::exists(output, ignored) || fs::is_empty(output, ignored), "--output_dir ",
                output, ": is not empty; give another");
  COMPACT_CHECK(!has_whole_weights(from), from, ": has weights of a whole model beside ",
                kAdapterFile, "; move one of them away");
  AdapterFolder adapters(from);
  const std::string base = given_base.empty() ? base_of(from, adapters) : given_base;
  const ModelWeights weights(base);
  weights.verify();
  nlohmann::json config = read_json(fs::path(base) / "config.json");
  ConfigKeys(config, base + "/config.json").refuse_quantized(/*but_bitsandbytes=*/true);
  adapters.refuse_merged(config, base + "/config.json");
  adapters.mark_merged(config);
  read_in_nf4(base);            // refuses other codes
  config.erase(kQuantization);  // the model is whole
  const std::optional<ReadInNf4> how = read_in_nf4(from);
  // A run of ours keeps beside its adapters all that goes along; peft what its user saved.
  std::map<std::string, std::string> files = kept_files(from, {}, /*own_tokenizer=*/true, warnings);
  if (!fs::exists(fs::path(from) / "config.json")) {
    const bool tokenizer = std::ranges::any_of(files, [](const auto& file) {
      return file.first.starts_with("tokenizer") || file.first.starts_with("vocab");
    });
    files.merge(kept_files(base, files, /*own_tokenizer=*/!tokenizer, warnings));
  }
  std::vector<TensorEntry> entries;
  for (const std::string& name : weights.names()) {
    if (is_part_of_nf4(weights, name)) continue;
    entries.push_back(weights.entry(name));
    if (!has_nf4(weights, name)) continue;
    const StoredNf4 stored = read_nf4(weights, name);
    entries.back().dtype = stored.type;
    entries.back().shape = {stored.codes.rows, stored.codes.columns};
  }
  make_folders(fs::absolute(output).parent_path());
  write_directory_atomically(output, [&](const fs::path& folder) {
    // One tensor at a time.
    SafetensorsWriter writer(folder / "model.safetensors", entries, kModelMetadata);
    for (const TensorEntry& entry : entries) {
      at::Tensor tensor = whole_tensor(weights, entry, how);
      adapters.add(entry.name, tensor);
      writer.add(entry.name, tensor.to(entry.dtype));
    }
    adapters.check_all_added();
    write_files_atomically(folder, files);
    write_json(folder / "config.json", config);
    writer.commit();
  });
}

}  // namespace compact
