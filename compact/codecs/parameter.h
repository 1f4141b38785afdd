// SPDX-License-Identifier: Apache-2.0
// A tensor of a model that training changes unless it is frozen, and the carrier that stands for it
// where its gradient is projected.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "compact/base/spec.h"
#include "compact/codecs/memory_place.h"
#include "compact/codecs/projection.h"
#include "compact/codecs/weight_home.h"

namespace compact {

// A zero-valued trainable leaf [out, r] whose gradient is (dL/dW) P. The optimizer steps it like
// any parameter; the fold then adds scale * carrier P^T to the weight and zeroes the carrier.
struct Carrier {
  at::Tensor value;           // [out, r], requires_grad; see zero_leaf
  std::vector<int64_t> rows;  // rows of each projection; sums to out; one entry: shared
  std::vector<ProjectionPtr> projections;  // as many as rows
  std::string type;                        // of projection
  int64_t in = 0, rank = 0;
  int64_t zeros = 0;   // of `in`: the last columns, see ZeroPadding
  int64_t period = 0;  // optimizer updates between re-draws of P; 0: never
  double scale = 1;    // alpha of the paper
  bool carry = true;   // moments follow the basis at a re-draw
  uint64_t key = 0;    // of this parameter; draw d has key derive(derive(key, d), group)
  int64_t draw = 0;    // how often P was drawn, less one

  // Elements per token of z.
  int64_t width() const { return rank * static_cast<int64_t>(projections.size()); }
  // z = x P per projection (one entry where shared). x [..., in].
  std::vector<at::Tensor> project(const at::Tensor& x) const;
  // (dL/dW) P from the gradient of the output gy [tokens, out] and z: [out, r].
  at::Tensor gradient(const at::Tensor& gy, const std::vector<at::Tensor>& z) const;
  // Draws projections number `draw` (moments are the optimizer's to change).
  void redraw(int64_t draw, at::TensorOptions options);
};

// A leaf of zeros that takes the memory of one element for any shape: a carrier is zero whenever it
// is read.
at::Tensor zero_leaf(at::IntArrayRef sizes, at::TensorOptions options);

// The carrier that `grad` (`project:...`) asks for on a weight [out, in] of fused parts, or null
// where it asks for none. `key` is the parameter's own. `zeros`: so many last columns of the weight
// are padding that no projection reads. Throws InputError on a rank that the other columns cannot
// have.
std::shared_ptr<Carrier> make_carrier(const Spec& grad, const std::string& name,
                                      const at::Tensor& weight, const std::vector<int64_t>& parts,
                                      uint64_t key, int64_t zeros = 0);
// `lr_scale` of a gradient's treatment, 1 by default. Throws InputError where it is negative.
double lr_scale_of(const Spec& grad);

// Zeros that pad a product to sizes that matrix units read fast: rows after each part, columns at
// the end of each row. Files and counts exclude them, and no update changes them.
struct ZeroPadding {
  int64_t rows = 0, columns = 0;
};

// `values` with zeros after each part and at the end of each row; `parts`: rows of each, these
// zeros included.
at::Tensor padded(const at::Tensor& values, const std::vector<int64_t>& parts,
                  const ZeroPadding& padding);

struct Parameter {
  std::string name;  // as in policies: layers.3.attn.qkv, embedding, final.norm.weight
  at::Tensor
      weight;  // the weight itself; a leaf that requires grad unless frozen or with a carrier
  std::shared_ptr<Carrier> carrier;  // null: full gradient
  std::vector<int64_t> parts;  // rows of the products fused into it (q, k, v); one entry: not fused
  ZeroPadding padding = {};    // within weight and parts
  bool hidden = false;         // a matrix inside a block: Muon and --projected_learning_rate apply
  bool decay = true;           // weight decay applies (not to norms and biases)
  double lr_scale = 1;         // multiplies the learning rate
  bool release = false;        // updated, and its gradient freed, inside the backward pass
  bool trained = true;         // false: frozen, without gradient, moments and updates
  MemoryPlace place = MemoryPlace::kDevice;  // of the weight, or of the codes that hold it
  // Where the weight is kept while no segment reads it: each home keeps what the next one holds of
  // it; empty: it is always in memory.
  std::vector<WeightPlace> places = {};

  // The tensor that autograd and the optimizer see.
  const at::Tensor& leaf() const { return carrier ? carrier->value : weight; }
  // Its elements without padding; and the bytes of its weight, or of what is held of it, that are
  // in memory now.
  int64_t count() const;
  int64_t weight_bytes() const;
};

// Sets carrier, learning rate and release as `grad` says, and makes leaf() its only tensor that
// requires a gradient; of a frozen parameter none does.
void treat_gradient(Parameter& parameter, const Spec& grad, uint64_t key);

}  // namespace compact
