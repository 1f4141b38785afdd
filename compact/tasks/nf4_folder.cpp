// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/nf4_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"
#include "compact/kernels/nf4.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr std::string_view kState = ".quant_state.bitsandbytes__";

std::optional<json> config_of(const std::string& folder) {
  const std::filesystem::path file = std::filesystem::path(folder) / "config.json";
  return is_file(file) ? std::optional(read_json(file)) : std::nullopt;
}

std::optional<Nf4Format> format_of(const json& config, const std::string& where) {
  const json* const found = ConfigKeys(config, where).find(kQuantization);
  if (!found) return std::nullopt;
  const ConfigKeys keys(*found, cat(where, ": ", kQuantization));
  const std::string method = keys.text("quant_method", ""),
                    type = keys.text("bnb_4bit_quant_type", "fp4"),
                    storage = keys.text("bnb_4bit_quant_storage", "uint8");
  COMPACT_CHECK(method == "bitsandbytes" && keys.flag("load_in_4bit", false), keys.where(),
                " must be of bitsandbytes with load_in_4bit, others are not read, is ",
                found->dump());
  COMPACT_CHECK(type == "nf4", keys.where(), ": bnb_4bit_quant_type must be nf4, is ", type);
  COMPACT_CHECK(storage == "uint8", keys.where(), ": bnb_4bit_quant_storage must be uint8, is ",
                storage);
  return Nf4Format{.nested = keys.flag("bnb_4bit_use_double_quant", false)};
}

at::ScalarType float_type(const std::string& name, const std::string& where) {
  const std::array types = {std::pair{"float32", at::kFloat}, std::pair{"bfloat16", at::kBFloat16},
                            std::pair{"float16", at::kHalf}};
  for (const auto& [text, type] : types) {
    if (name == text) return type;
  }
  fail(where, ": dtype must be float32, bfloat16 or float16, is ", name);
}

// A part of a matrix in codes.
at::Tensor part_of(const ModelWeights& weights, const std::string& name, at::ScalarType type,
                   int64_t count) {
  const std::string where = cat(weights.path().string(), ": `", name, "`");
  COMPACT_CHECK(weights.contains(name), where, ", of codes of four bits, is missing");
  const TensorEntry& entry = weights.entry(name);
  // In one dimension, or one column: a row would be another matrix.
  const bool line = entry.shape.size() == 1 || (entry.shape.size() == 2 && entry.shape[1] == 1);
  COMPACT_CHECK(entry.dtype == type && line && entry.shape[0] == count, where,
                ", of codes of four bits, must be ", c10::toString(type), " [", count, "], is ",
                c10::toString(entry.dtype), " ", at::IntArrayRef(entry.shape));
  return weights.read(name).view({-1});
}

// The text of a line of bytes.
json state_of(const ModelWeights& weights, const std::string& name) {
  const TensorEntry& entry = weights.entry(name);
  const std::string where = cat(weights.path().string(), ": `", name, "`");
  COMPACT_CHECK(entry.dtype == at::kByte && entry.shape.size() == 1, where,
                " must be a text in bytes");
  const at::Tensor text = weights.read(name);
  return parse_json({static_cast<const char*>(text.const_data_ptr()), text.nbytes()}, where);
}

}  // namespace

std::optional<Nf4Format> nf4_of(const TrainConfig& c) {
  if (!c.load_in_4bit) return std::nullopt;
  if (!c.model_name_or_path.empty() && is_folder(c.model_name_or_path)) {
    if (const auto stored = read_in_nf4(c.model_name_or_path)) {
      const bool given = c.use_bnb_nested_quant && !stored->format.nested;
      COMPACT_CHECK(!given, "--use_bnb_nested_quant: the codes of ", c.model_name_or_path,
                    " have scales that are not nested");
      return stored->format;
    }
  }
  return Nf4Format{.nested = c.use_bnb_nested_quant};
}

json nf4_json(const Nf4Format& format, const std::string& dtype) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", format.nested},
          {"bnb_4bit_compute_dtype", dtype}};
}

std::optional<ReadInNf4> read_in_nf4(const std::string& folder) {
  const std::optional<json> config = config_of(folder);
  if (!config) return std::nullopt;
  const std::string where = folder + "/config.json";
  const std::optional<Nf4Format> format = format_of(*config, where);
  if (!format) return std::nullopt;
  const ConfigKeys keys(*config, where);
  const char* const key = keys.find("dtype") ? "dtype" : "torch_dtype";
  return ReadInNf4{.format = *format, .type = float_type(keys.text(key, "float32"), where)};
}

bool is_coded(std::string_view name, at::IntArrayRef sizes) {
  return sizes.size() == 2 && name.find(".layers.") != name.npos && name.ends_with(".weight");
}

bool has_nf4(const ModelWeights& weights, const std::string& name) {
  return weights.contains(cat(name, kState, "nf4")) || weights.contains(cat(name, kState, "fp4"));
}

bool is_part_of_nf4(const ModelWeights& weights, std::string_view name) {
  constexpr std::string_view kWeight = ".weight.";
  const size_t at = name.rfind(kWeight);
  return at != name.npos && has_nf4(weights, std::string(name.substr(0, at + kWeight.size() - 1)));
}

StoredNf4 read_nf4(const ModelWeights& weights, const std::string& name) {
  const std::string folder = weights.path().string(), state_name = cat(name, kState, "nf4"),
                    where = cat(folder, ": `", state_name, "`");
  COMPACT_CHECK(weights.contains(state_name), folder, ": `", name,
                "` is in codes of fp4; of codes of four bits nf4 is read");
  const json state = state_of(weights, state_name);
  const ConfigKeys keys(state, where);
  const int64_t block = keys.required_integer("blocksize");
  COMPACT_CHECK(keys.text("quant_type", "") == "nf4", where, ": quant_type must be nf4");
  COMPACT_CHECK(block == kernels::kNf4Block, where, ": blocksize must be ", kernels::kNf4Block,
                ", is ", block);
  const std::vector<int64_t> shape = keys.required_list<int64_t>("shape");
  COMPACT_CHECK(shape.size() == 2 && shape[0] > 0 && shape[1] > 0, where,
                ": shape must be that of a matrix, is ", at::IntArrayRef(shape));
  const int64_t count = tensor_bytes(at::kByte, shape, where),
                blocks = (count - 1) / kernels::kNf4Block + 1;
  const bool nested = keys.find("nested_offset") != nullptr;
  COMPACT_CHECK(nested == weights.contains(name + ".nested_absmax"), where, " and `", name,
                ".nested_absmax` must say alike whether scales are nested");
  StoredNf4 stored{.type = float_type(keys.text("dtype", ""), where)};
  Nf4& made = stored.codes;
  made.rows = shape[0], made.columns = shape[1];
  made.codes = part_of(weights, name, at::kByte, count / 2 + count % 2);
  made.maps = nf4_maps();
  const at::Tensor levels = part_of(weights, name + ".quant_map", at::kFloat, 16),
                   own = made.maps.narrow(0, 0, 16);
  COMPACT_CHECK(levels.sub(own).abs().max().item<float>() <= 1e-6, folder, ": `", name,
                ".quant_map` must have the levels of nf4");
  own.copy_(levels);
  if (!nested) {
    made.scales = part_of(weights, name + ".absmax", at::kFloat, blocks);
    return stored;
  }
  const int64_t size = keys.required_integer("nested_blocksize");
  COMPACT_CHECK(size == kernels::kNf4Nested, where, ": nested_blocksize must be ",
                kernels::kNf4Nested, ", is ", size);
  COMPACT_CHECK(keys.text("nested_dtype", "") == "float32", where,
                ": nested_dtype must be float32");
  made.scale_codes = part_of(weights, name + ".absmax", at::kByte, blocks);
  made.maps.narrow(0, 16, 256).copy_(part_of(weights, name + ".nested_quant_map", at::kFloat, 256));
  const at::Tensor scales =
      part_of(weights, name + ".nested_absmax", at::kFloat, (blocks - 1) / size + 1);
  made.scales = at::cat({scales, at::full({1}, keys.number("nested_offset", 0), at::kFloat)});
  return stored;
}

at::Tensor decoded(const Nf4& codes, at::ScalarType type) {
  const bool half = type == at::kHalf;  // which no kernel writes
  const at::Tensor matrix = at::empty({codes.rows, codes.columns}, half ? at::kFloat : type);
  codes.decode(matrix);
  return half ? matrix.to(at::kHalf) : matrix;
}

at::Tensor through_nf4(const at::Tensor& matrix, const ReadInNf4& how) {
  return decoded(encode_nf4(matrix.to(how.type), how.format.nested), how.type);
}

}  // namespace compact
