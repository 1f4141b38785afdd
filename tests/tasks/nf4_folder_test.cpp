// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/nf4_folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/io/json_file.h"
#include "compact/models/families.h"
#include "compact/models/language_model.h"
#include "compact/tasks/load_weights.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor t = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(t.mutable_data_ptr(), text.data(), text.size());
  return t;
}

// The tensors that bitsandbytes writes for a matrix "w.weight".
struct Stored {
  explicit Stored(const Nf4& x) {
    state = {{"quant_type", "nf4"},
             {"blocksize", 64},
             {"dtype", "float32"},
             {"shape", {x.rows, x.columns}}};
    tensors = {{"w.weight", x.codes.view({-1, 1})},
               {"w.weight.absmax", x.nested() ? x.scale_codes : x.scales},
               {"w.weight.quant_map", x.maps.narrow(0, 0, 16)}};
    if (!x.nested()) return;
    const int64_t groups = x.scales.numel() - 1;
    tensors["w.weight.nested_absmax"] = x.scales.narrow(0, 0, groups);
    tensors["w.weight.nested_quant_map"] = x.maps.narrow(0, 16, 256);
    state["nested_blocksize"] = 256;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = x.scales[groups].item<float>();
  }
  StoredNf4 read() {
    const TemporaryFolder folder;
    tensors["w.weight.quant_state.bitsandbytes__" + type] = bytes_of(state.dump());
    write_safetensors(folder.path() / "model.safetensors", {tensors.begin(), tensors.end()});
    const ModelWeights weights(folder.path());
    EXPECT_TRUE(has_nf4(weights, "w.weight"));
    EXPECT_FALSE(is_part_of_nf4(weights, "w.weight"));
    for (const std::string& name : weights.names()) {
      EXPECT_EQ(is_part_of_nf4(weights, name), name != "w.weight") << name;
    }
    return read_nf4(weights, "w.weight");
  }
  json state;
  std::map<std::string, at::Tensor> tensors;
  std::string type = "nf4";
};

TEST(Nf4Folder, IsReadAsItIs) {
  for (const bool nested : {false, true}) {
    for (const auto& [rows, columns] : {std::pair{3, 7}, {130, 130}, {1, 64}}) {
      const Nf4 codes = encode_nf4(at::randn({rows, columns}), nested);
      Stored stored(codes);
      stored.state["dtype"] = "bfloat16";
      const StoredNf4 read = stored.read();
      EXPECT_EQ(read.type, at::kBFloat16);
      for (size_t i = 0; i < codes.tensors().size(); ++i) {
        EXPECT_TRUE(at::equal(read.codes.tensors()[i], codes.tensors()[i])) << i;
      }
      EXPECT_TRUE(at::equal(decoded(read.codes, at::kFloat), decoded(codes, at::kFloat)));
    }
  }
}

TEST(Nf4Folder, WhatDoesNotFitIsRefused) {
  const Nf4 codes = encode_nf4(at::randn({130, 130}), true);
  const auto refused = [&](const char* rule, const std::function<void(Stored&)>& change) {
    Stored stored(codes);
    change(stored);
    EXPECT_THAT(error_of([&] { stored.read(); }), HasSubstr(rule));
  };
  const auto lacks = [&](const char* part, const char* rule) {
    refused(rule, [&](Stored& s) { s.tensors.erase(std::string("w.weight.") + part); });
  };
  lacks("absmax", "absmax`, of codes of four bits, is missing");
  lacks("quant_map", "quant_map`, of codes of four bits, is missing");
  lacks("nested_absmax", "must say alike whether scales are nested");
  lacks("nested_quant_map", "nested_quant_map`, of codes of four bits, is missing");
  refused("codes of fp4", [](Stored& s) { s.type = "fp4"; });
  refused("quant_type must be nf4", [](Stored& s) { s.state["quant_type"] = "fp4"; });
  refused("blocksize must be 64, is 128", [](Stored& s) { s.state["blocksize"] = 128; });
  refused("nested_blocksize must be 256", [](Stored& s) { s.state["nested_blocksize"] = 64; });
  refused("nested_dtype must be", [](Stored& s) { s.state["nested_dtype"] = "float16"; });
  refused("dtype must be float32, bfloat16 or", [](Stored& s) { s.state["dtype"] = "float8"; });
  refused("shape must be that of a matrix", [](Stored& s) { s.state["shape"] = {130}; });
  refused("shape must be that of a matrix", [](Stored& s) { s.state["shape"] = {-1, 130}; });
  refused("must be Byte [8515]", [](Stored& s) { s.state["shape"] = {131, 130}; });
  refused("2^63", [](Stored& s) { s.state["shape"] = {1ll << 40, 1ll << 40}; });
  refused("must be Byte [8450], is Byte [1, 8450]", [](Stored& s) {
    at::Tensor& w = s.tensors["w.weight"];
    w = w.view({1, -1});
  });
  refused("must be Byte [8450], is Int", [](Stored& s) {
    at::Tensor& w = s.tensors["w.weight"];
    w = w.to(at::kInt);
  });
  refused("must have the levels of nf4",
          [](Stored& s) { s.tensors["w.weight.quant_map"] = at::linspace(-1, 1, 16); });
}

std::string config_with(const json& quantization, const std::filesystem::path& folder) {
  write_json(folder / "config.json", {{"dtype", "bfloat16"}, {kQuantization, quantization}});
  return folder.string();
}

TEST(Nf4Folder, SaysHowItsWeightsAreHeld) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_in_nf4(folder.path()));
  for (const bool nested : {false, true}) {
    const auto how = read_in_nf4(config_with(nf4_json({nested}, "bfloat16"), folder.path()));
    ASSERT_TRUE(how);
    EXPECT_EQ(how->format.nested, nested);
    EXPECT_EQ(how->type, at::kBFloat16);
  }
  const auto refused = [&](const char* key, const json& value, const char* rule) {
    json all = nf4_json({}, "float32");
    all[key] = value;
    EXPECT_THAT(error_of([&] { read_in_nf4(config_with(all, folder.path())); }), HasSubstr(rule));
  };
  refused("quant_method", "gptq", "must be of bitsandbytes");
  refused("load_in_4bit", false, "with load_in_4bit");
  refused("bnb_4bit_quant_type", "fp4", "bnb_4bit_quant_type must be nf4, is fp4");
  refused("bnb_4bit_quant_storage", "bfloat16", "must be uint8");
}

// Codes of each tensor of input.safetensors, and with nested scales.
TEST(Nf4Exchange, Codes) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/tasks/nf4.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  NamedTensors output;
  for (const TensorEntry& entry : input.entries()) {
    for (const bool nested : {false, true}) {
      const Nf4 codes = encode_nf4(input.read(entry.name), nested);
      const std::string name = cat(entry.name, nested ? ".nested" : ".plain");
      output.emplace_back(name + ".codes", codes.codes);
      output.emplace_back(name + ".scales", codes.scales);
      if (nested) output.emplace_back(name + ".scale_codes", codes.scale_codes);
      output.emplace_back(name + ".decoded", decoded(codes, entry.dtype));
    }
  }
  output.emplace_back("maps", nf4_maps());
  write_safetensors(folder / "output.safetensors", output);
}

// Loss and gradients of adapters beside codes: of the folder, or made when it is read.
TEST(Nf4Exchange, Gradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/tasks/nf4.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors"),
      adapters(folder / "adapters/adapter_model.safetensors");
  const at::Tensor ids = input.read("ids"), targets = input.read("targets");
  const json said = read_json(folder / "adapters/adapter_config.json");
  const auto stored = read_in_nf4(folder.string());
  NetworkOptions options{.max_length = ids.size(1)};
  options.lora = {.rank = said["r"], .alpha = said["lora_alpha"]};
  const bool nested = std::getenv("COMPACT_NESTED") != nullptr;
  options.nf4 = stored ? stored->format : Nf4Format{.nested = nested};
  const auto network = read_model(folder, ModelUse::kTokens)
                           ->build(Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")), options);
  load_weights(*network, folder.string());
  {
    const at::NoGradGuard no_grad;
    for (auto& [name, t] : network->adapter_tensors()) adapters.read_into(name, t);
  }
  const at::Tensor loss =
      network->loss({ids}, targets, {.scale = input.read("scale").item<double>()});
  loss.backward();
  const at::NoGradGuard no_grad;
  for (Parameter* p : network->trained()) p->weight.copy_(p->weight.grad());
  NamedTensors output = network->adapter_tensors();
  output.emplace_back("loss", loss.detach());
  write_safetensors(folder / "output.safetensors", output);
}

}  // namespace
}  // namespace compact
