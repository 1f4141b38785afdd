// SPDX-License-Identifier: Apache-2.0
// A network with its loss: the interface of every model for training, plans, probes, checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/codecs/nf4_weights.h"
#include "compact/codecs/parameter.h"
#include "compact/networks/lora.h"
#include "compact/ops/functions/preference_loss.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "compact/ops/segments/segment.h"
#include "compact/ops/stages/stages.h"

namespace compact {

// The arguments of a network's forward pass beside its batch.
struct Pass {
  double scale = 1;  // what the sum of the losses is multiplied by
  // Key of the random bits of codecs and dropout; must differ from pass to pass.
  uint64_t noise = 0;
  bool training = true;             // dropout is drawn, batch norms use the batch's statistics
  at::Tensor ranges = {};           // of decoders: sequences in rows, as in SegmentPass
  const SeeSegment* see = nullptr;  // called for every segment; null: not called

  SegmentPass of_segments(const at::Tensor& lengths = {}) const {
    return {.training = training, .noise = noise, .lengths = lengths, .ranges = ranges, .see = see};
  }
};

// The memory that a forward pass with gradients holds for its backward pass: by segments, by the
// model's own loss, and by plain operations. For one network and one thread; clear it before
// another pass.
struct PassReport : SegmentReport {
  // The tensors that plain operations saved in the last pass; under a policy that keeps them all,
  // in the first pass, since recording takes time.
  SavedTensorReport plain;
  at::Tensor rewards;  // of a batch of pairs, as Score has them, on the network's device

  // To be called before another pass of the network adds to it.
  void clear() { slots.clear(), tiles.clear(), saved_bytes = 0, rewards = at::Tensor(); }
  // Every slot with its treatment and exact bytes; and the bytes stored by all of them.
  std::vector<SlotBytes> all_slots() const;
  int64_t all_saved_bytes() const { return saved_bytes + plain.stored(); }
};

// The results of a network on a batch, without a graph.
struct Score {
  double loss = 0;      // sum over targets
  int64_t targets = 0;  // those that are not ignored; of preferences, pairs
  int64_t correct = -1,
          in_five = -1;  // targets whose class came first; came among the first five, -1 where
                         // there are not more classes
  at::Tensor predicted;  // where logits are made: f32 [samples], the first class or the value
  // For preferences, f64 [pairs, 2]: log probabilities of chosen and rejected answers, and their
  // rewards, what they have gained beside the reference times beta. `correct` counts pairs whose
  // chosen answer has the higher one.
  at::Tensor log_probs, rewards;
};

// A tensor that a codec holds from the forward to the backward pass.
struct CodecTensor {
  std::string name;
  Treatment treatment;
  int64_t elements = 0;
  at::ScalarType type = at::kFloat;
};

struct NetworkOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of weights and activations
  int64_t max_length = 2048;          // of language models: tokens of the longest sequence
  uint64_t seed = 0;                  // of weights and projections
  double label_smoothing = 0;         // of classifiers: part of a target, spread over all classes
  PreferenceLoss preference = {};     // of language models, for batches of pairs
  Lora lora = {};                     // with a rank: adapters alone are trained
  std::optional<Nf4Format> nf4 = {};  // how products that may have adapters are held beside these
  std::string offload_folder = {};    // for files of weights whose place is a disk
};

class Network {
 public:
  // The weight and bias of a product or a norm; null where there is none. `others`: further
  // products of the same input with matrices of their own, whose outputs follow. `adapters`: of all
  // these products.
  struct Adapter {
    LowRankAdapter how;
    const Parameter *a = nullptr, *b = nullptr;
  };
  struct Affine {
    const Parameter *weight = nullptr, *bias = nullptr;
    std::vector<Affine> others = {};
    std::vector<Adapter> adapters = {};
  };
  // A segment, and the parameters that its stages read, in their order.
  struct Part {
    Part(std::string name, Slot input) : segment(std::move(name), std::move(input)) {}
    // Appends a stage that reads these parameters; see Segment.
    int add(std::shared_ptr<const Stage> stage, std::initializer_list<const Parameter*> read = {},
            Slot output = {}, Slot side = {});
    int add_branch(int input, std::shared_ptr<const Stage> stage,
                   std::initializer_list<const Parameter*> read = {}, Slot output = {});
    // Appends a product; where its gradient is projected, it can keep the input's projection alone.
    int add_linear(const Affine& linear, Slot output = {});
    at::Tensor run(at::Tensor x, const SegmentPass& pass, SegmentReport* report) const {
      return segment(std::move(x), weights_of(parameters), pass, report);
    }

    Segment segment;
    std::vector<const Parameter*> parameters;
  };

  virtual ~Network() = default;

  // scale * sum of the losses of the batch's targets, -100 ignored. `inputs` as the model's data
  // set gives them. What the pass holds is added to `report`. Many threads may call it at once,
  // each with its own report, unless batch norms in training move their statistics.
  virtual at::Tensor loss(const Tensors& inputs, const at::Tensor& target, const Pass& pass,
                          PassReport* report = nullptr) const = 0;
  virtual Score score(const Tensors& inputs, const at::Tensor& target,
                      const at::Tensor& ranges = {}) const = 0;

  const NetworkOptions& options() const { return options_; }
  at::Device device() const { return options_.device; }
  at::ScalarType dtype() const { return options_.dtype; }  // of activations
  // All parameters, in a fixed order; and those that are not frozen, which optimizers get.
  std::vector<Parameter*> parameters() const;
  std::vector<Parameter*> trained() const;
  int64_t parameter_count() const;
  // The tensors of model.safetensors by the names that Hugging Face gives them, statistics
  // included. Copying into them loads a model.
  virtual std::vector<std::pair<std::string, at::Tensor>> named_tensors() const = 0;
  // The weights that are held in codes, without memory among named_tensors(); null: there are none.
  Nf4Weights* nf4() const { return nf4_.get(); }
  // The tensors that are held for one of named_tensors(): itself, or its codes.
  std::vector<at::Tensor> held(const at::Tensor& named) const;
  // Adapters, which are in f32: A and B by the names that peft gives them, and what they adapt.
  std::vector<std::pair<std::string, at::Tensor>> adapter_tensors() const;
  std::vector<std::string> adapted_modules() const;
  // Other names that a file may have for a tensor. may_be_new: a pretrained model may lack the
  // tensor, for example a head; it is then initialised.
  using Names = std::vector<std::string>;
  virtual Names other_names(const std::string&) const { return {}; }
  virtual bool may_be_new(const std::string&) const { return false; }
  // Names under which a file may have the same values once more, for example those of a tied head.
  virtual Names copies_of(const std::string&) const { return {}; }
  // The first of the tensor's names for which has(name) is true; else its own name.
  std::string found_name(const std::string& name, FunctionRef<bool(const std::string&)> has) const;

  // The segments, each one node of the graph, in the order of the forward pass; none where plain
  // operations save all tensors.
  std::vector<const Segment*> segments() const;
  // The parameters that a segment of this network reads, in the order of its weights.
  std::vector<Parameter*> parameters_of(const Segment& segment) const;
  // A forward pass that shows its segments, first to last, and what they read.
  void each_segment(const Tensors& inputs, const at::Tensor& target, Pass pass,
                    SeeSegment see) const;
  // The head's matrix of a loss that may be made in chunks (loss.logits); null: there is none.
  virtual const Parameter* chunked_head() const { return nullptr; }

  // Whether rows of inputs and target are independent samples, so that part of a batch is a batch.
  virtual bool divisible() const { return true; }

  // codec_tensors(): what codecs hold of the passes in a report. set_codecs(): changes codecs of
  // such tensors for later passes, by `slot NAME = ...` lines.
  std::vector<CodecTensor> codec_tensors(const PassReport& report) const;
  virtual void set_codecs(const Policy& policy);

 protected:
  // The keys of a pass's dropout between segments, one after another.
  class DropoutKeys {
   public:
    explicit DropoutKeys(const Pass& pass);
    uint64_t next();
    // x with each element zeroed with probability p and divided by 1 - p else.
    at::Tensor drop(const at::Tensor& x, double p);

   private:
    uint64_t key_, drawn_ = 0;
  };

  // The first network of a process chooses how bf16 products are made: ops/cpu/bf16_products.h.
  explicit Network(Policy policy = {}, const NetworkOptions& options = {});
  const Policy& policy() const { return policy_; }

  at::TensorOptions tensor_options() const {
    return at::TensorOptions().device(options_.device).dtype(options_.dtype);
  }
  // A parameter that lives as long as the network. `parts`: rows of each fused product,
  // padding included; empty: it is one product. `hidden`: a matrix of a block. Biases and norms
  // (one dimension) have no weight decay.
  const Parameter* parameter(const std::string& name, const at::Tensor& value, bool hidden = false,
                             std::vector<int64_t> parts = {}, const ZeroPadding& padding = {});
  // A fused product's matrix [sum of out, in], `out` being the rows of its parts, with normal
  // values, and a bias of zeros.
  struct LinearStart {
    double deviation = 0.02;
    bool hidden = true;  // of a block
    bool bias = true;
    ZeroPadding padding = {};  // added to each of `out` and to `in`
  };
  Affine linear(const std::string& name, int64_t in, std::vector<int64_t> out,
                const LinearStart& start);
  // A layer norm's ones and zeros, in f32 whatever the type of activations.
  Affine layer_norm(const std::string& name, int64_t width);
  // Normal values of this deviation, keyed by seed and name.
  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double deviation) const;
  // To be called once all parameters are there: treats their gradients as the policy says. Throws
  // InputError where a parameter cannot have its treatment, or a pattern matches none.
  void treat_parameters();
  // To be called once all parts are there: gives weights that lie elsewhere to the segments that
  // read them. Throws InputError where a pattern of the policy matches none that can.
  void place_weights();
  // Adds a product's tensors as PREFIX + NAME + ".weight" and ".bias": each part of a fused product
  // by its own name, or the whole by the one name.
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  static void put(NamedTensors& all, const std::string& prefix, const Affine& affine,
                  const std::vector<const char*>& names = {""});
  // Puts a product's frozen matrices into codes, each part that has a name by itself, where the
  // options ask for it. Names are those of put().
  void hold_in_codes(const Affine& affine, const std::vector<const char*>& names);
  // To be called before the part that has the product, where it can have adapters: makes those that
  // the options ask for. Prefix and names are those of put().
  void adapt(Affine& affine, const std::string& prefix, const std::vector<const char*>& names);
  // Adds a part; parts run in the order in which they were added.
  Part& add_part(std::string name, Slot input);
  const std::vector<std::unique_ptr<Part>>& parts() const { return parts_; }
  // The slots of all parts, for policies.
  std::vector<NamedRole> segment_slots() const;

 private:
  uint64_t key_of(const std::string& name) const;
  // Where the policy has the weight outside of the device, moves it, or its codes, there, and
  // returns what was moved.
  std::vector<at::Tensor> move_out(Parameter& p) const;

  Policy policy_;
  NetworkOptions options_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  struct Adapted {
    std::string module;  // as transformers names it
    const Parameter *a, *b;
  };
  std::vector<Adapted> adapted_;
  std::shared_ptr<Nf4Weights> nf4_;
  std::vector<std::string> adaptable_;  // modules, adapted or not
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace compact
