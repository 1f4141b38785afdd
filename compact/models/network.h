// SPDX-License-Identifier: Apache-2.0
// A network with its loss: what training, plans, probes and checkpoints ask of every model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/codecs/parameter.h"
#include "compact/ops/policy.h"
#include "compact/ops/segment.h"

namespace compact {

// How a network does on a batch, without a graph.
struct Score {
  double loss = 0;      // sum over targets
  int64_t targets = 0;  // those that are not ignored
  int64_t correct = -1,
          in_five = -1;  // whose class is the first, one of the first five; -1: there are no more
  at::Tensor
      predicted;  // of networks that give logits: f32 [samples], the first class or the value
};

// A tensor that a codec holds from the forward to the backward pass.
struct CodecTensor {
  std::string name, treatment;
  int64_t elements = 0;
  at::ScalarType type = at::kFloat;
};

class Network {
 public:
  virtual ~Network() = default;

  // scale * sum of the losses of the batch's targets, -100 ignored. `inputs` as the model's data
  // set gives them.
  virtual at::Tensor loss(const Tensors& inputs, const at::Tensor& target, double scale) const = 0;
  virtual Score score(const Tensors& inputs, const at::Tensor& target) const = 0;

  virtual at::Device device() const = 0;
  // All trainable tensors, in a fixed order.
  virtual std::vector<Parameter*> parameters() const = 0;
  // What model.safetensors holds, by the names that other programs know; statistics included.
  // Copying into them loads.
  virtual std::vector<std::pair<std::string, at::Tensor>> named_tensors() const = 0;
  // By which other names a file may have one of them; whether a pretrained model may lack it, as
  // one without a head: it is new then.
  using Names = std::vector<std::string>;
  virtual Names other_names(const std::string&) const { return {}; }
  virtual bool may_be_new(const std::string&) const { return false; }
  // By which of its names a file that `has` some has this one; its own where by none.
  std::string found_name(const std::string& name, FunctionRef<bool(const std::string&)> has) const {
    if (has(name)) return name;
    for (const std::string& other : other_names(name)) {
      if (has(other)) return other;
    }
    return name;
  }

  // Parts that are one node of the graph each, in the order of the forward pass; none: all saved
  // tensors are those of plain operations.
  virtual std::vector<Segment*> segments() const { return {}; }
  // Evaluates without a graph, up to the last segment; tells of each, first to last, what it reads.
  using SeeSegment = FunctionRef<void(const Segment&, const at::Tensor& input)>;
  virtual void each_segment(const Tensors&, SeeSegment) const {}

  // Of the latest forward pass that made a graph: every slot with its treatment and exact bytes,
  // and what was stored in all.
  virtual std::vector<SlotBytes> slots() const = 0;
  virtual int64_t saved_bytes() const = 0;

  // Whether the rows of inputs and target are samples of their own, so that part of a batch is one.
  virtual bool divisible() const { return true; }

  // What random bits of codecs and dropout come from in the forward passes to come.
  virtual void set_noise(uint64_t key) const = 0;
  // What codecs hold in a forward pass on these inputs, as known from shapes or from the latest
  // one; and giving some of it other codecs, as `slot NAME = ...` lines, for those to come.
  virtual std::vector<CodecTensor> codec_tensors(const Tensors& inputs) const = 0;
  virtual void set_codecs(const Policy& policy) = 0;

  int64_t parameter_count() const {
    int64_t count = 0;
    for (const Parameter* p : parameters()) count += p->weight.numel();
    return count;
  }

 protected:
  // Parameters are the caller's to train, also through a const network.
  static Parameter* trainable(const Parameter& p) { return const_cast<Parameter*>(&p); }
};

}  // namespace compact
