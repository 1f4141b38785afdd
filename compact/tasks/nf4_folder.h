// SPDX-License-Identifier: Apache-2.0
// Model folders whose matrices are in NF4 as bitsandbytes and transformers write them, and those of
// runs of adapters beside a base that was put into NF4.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "compact/codecs/nf4.h"
#include "compact/config/config.h"
#include "compact/io/model_weights.h"

namespace compact {

inline constexpr const char* kQuantization = "quantization_config";  // of config.json

// How the matrices of a run's blocks are held: none unless --load_in_4bit; as the folder of
// --model_name_or_path has them where that is in codes already.
std::optional<Nf4Format> nf4_of(const TrainConfig& config);
// quantization_config as transformers writes it, of a model that computes in `dtype`.
nlohmann::json nf4_json(const Nf4Format& format, const std::string& dtype);

// How the weights of a folder's base were read in training: matrices of blocks in `type`, put into
// NF4. Of config.json; none where there is no such file, or no quantization_config. Throws
// InputError where it names codes other than bitsandbytes' NF4 in bytes.
struct ReadInNf4 {
  Nf4Format format;
  at::ScalarType type = at::kFloat;
};
std::optional<ReadInNf4> read_in_nf4(const std::string& folder);
// Whether such a tensor of a decoder is put into codes: every matrix of a block.
bool is_coded(std::string_view name, at::IntArrayRef sizes);

// A matrix in codes among the tensors of a folder; `type`: of what it was made of.
struct StoredNf4 {
  Nf4 codes;
  at::ScalarType type = at::kFloat;
};
bool has_nf4(const ModelWeights& weights, const std::string& name);
// Whether another tensor of the folder has codes of which this one is a part.
bool is_part_of_nf4(const ModelWeights& weights, std::string_view name);
// Throws InputError, naming the tensor and the rule, on parts that are missing or do not fit
// together, on fp4 and on other sizes of blocks.
StoredNf4 read_nf4(const ModelWeights& weights, const std::string& name);
// The matrix that a reader of the folder computes with, on the CPU, in f32 or bf16: of codes in
// `type`, or put through NF4.
at::Tensor decoded(const Nf4& codes, at::ScalarType type);
at::Tensor through_nf4(const at::Tensor& matrix, const ReadInNf4& how);

}  // namespace compact
