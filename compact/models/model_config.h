// SPDX-License-Identifier: Apache-2.0
// A model before it is built: what config.json says of it, whatever its family.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compact/base/image_fit.h"

namespace compact {

class Network;
class Policy;
struct NetworkOptions;

// The ids of tokens that a model reads and says: those below `vocabulary`.
struct TokenIds {
  int64_t vocabulary = 0;  // 0: it reads no tokens
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;    // none, one or several
  std::optional<int64_t> pad;  // its embedding gets no gradient as an input
};

// The causal attention of a decoder, as far as runs report it.
struct AttentionShape {
  int64_t head_dim = 0;  // 0: there is none
  double dropout = 0;    // of its probabilities
  double softcap = 0;    // of its scores; 0: none
  int64_t window = 0;    // of some of its layers, in tokens; 0: none
};

// The properties on which a model, its data and the options of a run must agree. 0, or empty: the
// model has no such property.
struct ModelShape {
  TokenIds tokens;
  int64_t length = 0;      // tokens of the longest sequence
  std::string length_key;  // what in config.json says so
  int64_t token_types = 0;
  AttentionShape attention;  // output only: fit() ignores it

  int64_t channels = 0, height = 0, width = 0;  // of images
  std::vector<double> mean, deviation;          // that pixels of each channel are scaled by
  ImageFit image_fit;                           // how images of other sizes get that one

  int64_t features = 0;       // of a graph's node
  bool whole_graphs = false;  // a class for each graph, not for each node

  int64_t classes = 0;              // outputs of a classifier
  std::vector<std::string> labels;  // their names, in order; none: they have none
  bool regression = false;          // its one output is a value

  int64_t hidden = 0, layers = 0;  // of networks that have no sizes of their own
  double dropout = -1;             // everywhere; below 0: as config.json says
};

class ModelConfig {
 public:
  virtual ~ModelConfig() = default;
  virtual std::unique_ptr<ModelConfig> clone() const = 0;

  virtual ModelShape shape() const = 0;
  // Takes from `shape` what data and options may decide: a vocabulary with the ids of its own,
  // labels, sizes of images, dropout; a longer sequence where the model can have one. The caller
  // changes the result of shape(), which unchanged has no effect.
  virtual void fit(const ModelShape& shape) = 0;
  // Becomes the smallest model that has a segment of each kind that this one has.
  virtual void shrink() {}

  // config.json, for weights of `dtype` ("float32").
  virtual nlohmann::json to_json(const std::string& dtype) const = 0;
  // Further files that transformers reads, by their names.
  virtual std::map<std::string, std::string> files() const { return {}; }
  // With new weights. Throws InputError where policy or options ask for what it cannot have.
  virtual std::unique_ptr<Network> build(const Policy& policy,
                                         const NetworkOptions& options) const = 0;
};

}  // namespace compact
