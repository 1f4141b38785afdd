// SPDX-License-Identifier: Apache-2.0
// The common part of models of all families: a configuration C made of rows, and a network N.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "compact/models/config_rows.h"
#include "compact/models/families.h"
#include "compact/networks/network.h"

namespace compact {

// Model: the class that is derived from this one.
template <class Model, class C, class N>
class FamilyModel : public ModelConfig {
 public:
  explicit FamilyModel(C config) : c_(std::move(config)) {}
  static std::unique_ptr<ModelConfig> read(const nlohmann::json& config, std::string_view where) {
    return std::make_unique<Model>(read_config<C>(config, where));
  }
  std::unique_ptr<ModelConfig> clone() const override {
    return std::make_unique<Model>(static_cast<const Model&>(*this));
  }
  nlohmann::json to_json(const std::string& dtype) const override {
    return write_config(c_, dtype);
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<N>(c_, policy, options);
  }

 protected:
  // For language models.
  void set_tokens(const TokenIds& tokens) {
    c_.vocab_size = tokens.vocabulary;
    c_.bos_token_id = tokens.bos;
    c_.eos_token_ids = tokens.eos;
    if constexpr (requires { c_.pad_token_id; }) c_.pad_token_id = tokens.pad;
  }

  C c_;
};

}  // namespace compact
