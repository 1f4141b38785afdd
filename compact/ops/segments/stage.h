// SPDX-License-Identifier: Apache-2.0
// The interface of a segment's operations: both directions, and their properties.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/codecs/codec.h"
#include "compact/ops/segments/weight.h"

namespace compact {

using Tensors = std::vector<at::Tensor>;

class Segment;
class TokenCache;
struct SegmentPass;
// Called for every segment of a pass before it runs, with what it reads.
using SeeSegment =
    FunctionRef<void(const Segment&, const at::Tensor& input, Weights weights, const SegmentPass&)>;

// The arguments of a forward pass; its backward pass has the same.
struct SegmentPass {
  bool training = false;  // dropout is drawn, norms use the batch's statistics
  uint64_t noise = 0;  // key of the random bits of codecs and dropout; another one for each run of
                       // a segment in a network
  at::Tensor lengths;  // int64 [batch]: tokens that are not padding; undefined: no padding
  // int64 [n, 3] on the CPU, as range_attention.h has them: each is a sequence of its own, whose
  // positions begin at 0; tokens in none attend to nothing. Undefined: each row is one sequence.
  // For causal attention.
  at::Tensor ranges;
  // Cosines and sines, f32 [tokens of a sequence, or of the whole batch, width / 2], for rope
  // stages without tables of their own.
  at::Tensor cos, sin;
  // The type of what matrix products give where x or a weight has another one, as under autocast:
  // products read their input in the type of their weight, and norms before them give this type.
  std::optional<at::ScalarType> products;
  const SeeSegment* see = nullptr;  // only in the forward pass; null: not called
  // Where given, the tokens are those of one sequence that follow the ones in the cache; such a
  // pass makes no graph.
  TokenCache* cache = nullptr;

  // x in `type` where types may differ; else x as it is, so that checks refuse another type.
  at::Tensor as(const at::Tensor& x, at::ScalarType type) const {
    return products ? x.to(type) : x;
  }
  // x in the type of products, where that is said.
  at::Tensor as_product(const at::Tensor& x) const { return products ? x.to(*products) : x; }
};

// The cost of running a stage forward, independent of the device.
struct Work {
  double products = 0;  // floating-point operations of matrix products
  double bytes = 0;     // read and written
  int64_t inner = 0;    // of a product with matrices of [out, inner] alone; 0: something else
};
inline Work operator+(Work a, const Work& b) {
  return {a.products + b.products, a.bytes + b.bytes};
}

// One operation of a segment. Both directions take the weights from their arguments: a stage holds
// no parameter, and many threads may run it at once; only a batch norm in training moves statistics
// that it holds.
class Stage {
 public:
  using Pass = SegmentPass;  // its noise is the stage's own
  // The tensors that backward reads, beside the stage's extras.
  struct Needs {
    bool input = false, output = false;
  };
  struct Forward {
    at::Tensor input;
    bool overwrite = false;    // `input` has no other reader: its memory may hold the output
    bool want_extras = false;  // a backward pass will follow
    bool want_side = false;    // the side output is to be kept
    bool sketch = false;       // keep the projection of the input among the extras
    bool again = false;        // rebuilds in a backward pass: must not move statistics
    Pass pass;
    Weights weights;  // as many as parameters()
    Tensors extras;   // result: small tensors that are always kept; with `again`: those
    at::Tensor side;  // result: a second output that backward reads or recomputes
  };
  struct Backward {
    at::Tensor gy;                    // gradient of the output
    at::Tensor input, output;         // where needed; input: see reads_input_for
    bool consume = false;             // `input` has no other reader: its memory may be reused
    at::Tensor means;                 // in place of `input`, where it is held as means
    Windows windows;                  // of them
    at::Tensor side;                  // where kept
    const Tensors* extras = nullptr;  // as forward left them
    Pass pass;
    Weights weights;      // those of the forward pass
    bool sketch = false;  // in place of the input its projection is there, in the extras
    at::Tensor residual;  // where defined: to be added to the result
    bool want_input = true;
    std::vector<bool> want_parameters;  // one per parameter
    Tensors gparameters;                // result: one per parameter, undefined where not wanted

    // gx + residual, in the memory of gx unless the residual has another type.
    at::Tensor plus_residual(at::Tensor gx) const {
      if (!residual.defined()) return gx;
      return residual.scalar_type() == gx.scalar_type() ? gx.add_(residual) : residual.add(gx);
    }
  };

  virtual ~Stage() = default;
  virtual Needs needs() const = 0;
  // How many weights it takes.
  virtual int parameters() const { return 0; }
  virtual at::Tensor forward(Forward& f) const = 0;
  // Gradient of the input, plus `residual`; undefined where it is not wanted. Moves tensors out of
  // its arguments where it can, to free memory early.
  virtual at::Tensor backward(Backward& b) const = 0;
  // How many of its parameters, the first ones, have gradients that need the stage's input; no
  // other gradient needs it. 0: backward reads its input for every gradient.
  virtual int reads_input_for() const { return 0; }
  // Whether backward divides what it reads by a scale of each channel (of the second dimension):
  // what rounds it must not measure one channel by another.
  virtual bool reads_channels() const { return false; }
  // The same of rows, of which the last dimension, of `width` values, has one or several: how many
  // values one has; 0: it does not.
  virtual int64_t reads_rows(int64_t /*width*/) const { return 0; }
  // Whether both directions treat each row of the last dimension by itself, in any shape, so that
  // they can run on some rows at a time; gradients of parameters are then sums.
  virtual bool by_token() const { return false; }
  // Whether forward leaves extras, of a stage that runs by token.
  virtual bool leaves_extras() const { return false; }
  // Whether backward can work from means over windows of its input (windows as wide as strides).
  virtual bool reads_means() const { return false; }
  // Whether backward, where it needs its output, reads only its signs.
  virtual bool reads_signs() const { return false; }
  // For a stage that reads signs: the same operation, which keeps the signs itself and does not
  // read its output.
  virtual std::shared_ptr<const Stage> keeping_signs() const { return nullptr; }
  // The cost of a forward pass that makes `output` from `input`, which may be on the meta device.
  virtual Work work(const at::Tensor& input, const at::Tensor& output, Weights, const Pass&) const {
    return {.bytes = static_cast<double>(input.nbytes() + output.nbytes())};
  }
  // For a stage on the meta device that holds tensors beside its weights: the same stage on the
  // CPU, with made-up values in them. Null: it holds none.
  virtual std::shared_ptr<const Stage> stand_in() const { return nullptr; }
  // A number that distinguishes stages that are otherwise alike, for example by their window.
  virtual int64_t variant() const { return 0; }
  // Whether the gradient of its first parameter, a matrix, may be made in a projected space.
  virtual bool may_project() const { return false; }
  // Elements per token of the projection of the input; 0: this stage cannot work from a sketch.
  virtual int64_t sketch_width() const { return 0; }
};

}  // namespace compact
