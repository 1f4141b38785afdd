// SPDX-License-Identifier: Apache-2.0
// A segment: an ordered list of stages that is one autograd node. Every tensor on the way is kept
// or rebuilt from kept ones in the backward pass; both give the same gradients bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compact/codecs/codec.h"
#include "compact/codecs/parameter.h"
#include "compact/ops/policy.h"

namespace compact {

using Tensors = std::vector<at::Tensor>;

// What running a stage forward takes, whatever the device.
struct Work {
  double products = 0;  // floating-point operations of matrix products
  double bytes = 0;     // read and written
};
inline Work operator+(Work a, const Work& b) {
  return {a.products + b.products, a.bytes + b.bytes};
}

// One operation of a segment. Stages are immutable while a graph that uses them lives.
class Stage {
 public:
  // What is said of a forward pass, the same in its backward pass.
  struct Pass {
    bool training = false;  // dropout is drawn, norms use the batch's statistics
    uint64_t key = 0;       // of this stage's random bits
    at::Tensor lengths;     // int64 [batch]: tokens that are not padding; undefined: all are not
  };
  // What backward reads, beside its extras.
  struct Needs {
    bool input = false, output = false;
  };
  struct Forward {
    at::Tensor input;
    bool overwrite = false;    // `input` is read by nobody else: its memory may hold the output
    bool want_extras = false;  // a backward pass will follow
    bool want_side = false;    // the side output is to be kept
    bool sketch = false;       // keep the projection of the input among the extras
    bool again = false;        // rebuilds in a backward pass: leaves no trace on statistics
    Pass pass;
    Tensors extras;   // result: small tensors that are always kept; again: what they are
    at::Tensor side;  // result: a second output that backward can read or make anew
  };
  struct Backward {
    at::Tensor gy;                    // gradient of the output
    at::Tensor input, output;         // where needed
    bool consume = false;             // nobody else reads `input`: its memory may be reused
    at::Tensor means;                 // in place of `input`, where it is held as means
    Windows windows;                  // of them
    at::Tensor side;                  // where kept
    const Tensors* extras = nullptr;  // as forward left them
    Pass pass;
    bool sketch = false;  // the input is not there, its projection is in the extras
    at::Tensor residual;  // where defined: to be added to the result
    bool want_input = true;
    std::vector<bool> want_parameters;  // one per parameter
    Tensors gparameters;                // result: one per parameter, undefined where not wanted

    // In the memory of gx.
    at::Tensor plus_residual(at::Tensor gx) const {
      return residual.defined() ? gx.add_(residual) : gx;
    }
  };

  virtual ~Stage() = default;
  virtual Needs needs() const = 0;
  virtual std::vector<const Parameter*> parameters() const { return {}; }
  virtual at::Tensor forward(Forward& f) const = 0;
  // Gradient of the input, plus `residual`. Takes what it can of its arguments to free memory
  // early.
  virtual at::Tensor backward(Backward& b) const = 0;
  // Whether backward can do with means over windows of its input (as many windows as strides).
  virtual bool reads_means() const { return false; }
  // Whether backward asks no more of its output, where it needs it, than what is above 0.
  virtual bool reads_signs() const { return false; }
  // Of the forward pass on `tokens` tokens in sequences of `length`; nothing for stages of maps.
  virtual Work work(int64_t, int64_t, int64_t) const { return {}; }
  // Of stages of maps, which are known by their sizes.
  virtual Work map_work(const at::Tensor& input, const at::Tensor& output) const {
    return {.bytes = static_cast<double>(input.nbytes() + output.nbytes())};
  }
  // Elements per token of the extras (without sketches), in units of 4 bytes.
  virtual int64_t extra_floats() const { return 0; }
  // Elements per token of the projection of the input; 0: this stage cannot work from a sketch.
  virtual int64_t sketch_width() const { return 0; }
};

enum class Storage : uint8_t { kKeep, kRecompute, kSketch, kCodec };

// A named tensor of a segment.
struct Slot {
  std::string name;   // layers.0.attn.norm
  int64_t width = 0;  // elements per token
  Storage storage = Storage::kKeep;
  CodecPtr codec = {};    // with kCodec
  std::string treatment;  // as written, with kCodec
  std::string treatment_name() const;
};

struct SlotUse {
  std::string name;
  bool rebuilt = false;  // it can be: it is made of slots, or of what can be made of them
  bool signs = false;    // backward asks no more of it than what is above 0
};

// What a slot costs for a number of tokens.
struct SlotBytes {
  std::string name, treatment;
  int64_t stored = 0, if_kept = 0;
};

class Segment {
 public:
  // Tensor 0 is the segment's input. Its slot is kept, as it is or by a codec; without a name it is
  // not, and nothing may be rebuilt from it. `name`: layers.3.
  Segment(std::string name, Slot input);

  // Appends a stage that reads the tensor made last. `output` describes what it makes (empty name:
  // not a slot, never kept); `side` its second output, if the stage has one. Returns the tensor.
  int add(std::shared_ptr<const Stage> stage, Slot output = {}, Slot side = {});
  // The same for a stage that reads tensor `input`: a branch.
  int add_branch(int input, std::shared_ptr<const Stage> stage, Slot output = {});
  // Appends the sum of the tensor made last and tensor `other`.
  int add_residual(int other, Slot output = {});

  // Checks treatments against what stages can do; called once all stages are there. Throws
  // InputError naming the slot, for example where a sketched slot is read by an operation that
  // needs the tensor itself.
  void finish();

  // y = segment(x). One autograd node where gradients are on and something requires them. A second
  // backward pass through it needs retain_graph in the first. `lengths`: see Stage::Pass.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& lengths = {}) const;
  // The same where the caller gives x up: its memory may hold what is made of it.
  at::Tensor operator()(at::Tensor&& x, const at::Tensor& lengths = {}) const;

  // Slots that codecs hold, and giving one of them another codec for forward passes to come.
  std::vector<Slot> codec_slots() const;
  void set_codec(const std::string& slot, const std::string& treatment);
  // The same for all that the policy names.
  void set_codecs(const Policy& policy);

  // What the random bits of codecs and dropout come from, until the next call: every forward pass
  // has others.
  void set_noise(uint64_t key) const { noise_ = key, passes_ = 0; }
  // Whether forward passes to come are of training; at first they are not.
  void set_training(bool training) const { training_ = training; }

  const std::string& name() const { return name_; }
  int tensors() const { return static_cast<int>(slots_.size()); }

  // Exact bytes held for `tokens` tokens by element size: every slot, then "NAME extras".
  std::vector<SlotBytes> bytes(int64_t tokens, int64_t element_size) const;
  // Whether a tensor comes back rounded: by its own codec, or made from one that does.
  bool rounded(int tensor) const;
  // What a policy may do with each slot, in the order of the forward pass; their names.
  std::vector<SlotUse> uses() const;
  std::vector<std::string> named_slots() const;
  // What each step takes, in order; whether the backward pass runs it again.
  std::vector<Work> work(int64_t tokens, int64_t length, int64_t element_size) const;
  std::vector<Work> work(const at::Tensor& x) const;  // on tokens, or maps, where it is run
  std::vector<bool> rerun() const;
  // Seconds of each step of a forward pass on x, the least of `rounds`.
  std::vector<double> forward_seconds(const at::Tensor& x, int rounds) const;

  // Of the latest forward pass that made a graph: every slot, then "NAME extras".
  const std::vector<SlotBytes>& latest() const { return latest_; }
  // Bytes that the latest forward pass stored, summed over slots and extras.
  int64_t saved_bytes() const { return saved_bytes_; }
  // How many tensors backward passes have rebuilt, since construction.
  int64_t recomputed() const { return recomputed_; }

 private:
  friend struct SegmentNode;
  struct Step {
    std::shared_ptr<const Stage> stage;  // null: residual add
    int input = 0, other = -1;
    Slot side;
    int first_parameter = 0;
    bool sketch = false;
  };

  bool read_in_backward(int tensor) const;
  bool stored(int tensor) const;          // as it is or by a codec
  bool rebuilt(int tensor) const;         // can be, from what is stored
  bool can_be_rebuilt(int tensor) const;  // from what could be stored
  // Runs step i on tensors `t`.
  at::Tensor run(size_t i, Tensors& t, Stage::Forward& f) const;

  std::string name_;
  std::vector<Slot> slots_;  // one per tensor; [0] is the input
  std::vector<Step> steps_;
  std::vector<const Parameter*> parameters_;
  std::vector<int> last_reader_;    // last step that reads a tensor in the forward pass
  std::vector<bool> overwritable_;  // one forward reader, never stored nor read by a backward
  mutable std::vector<SlotBytes> latest_;
  mutable int64_t saved_bytes_ = 0, recomputed_ = 0;
  mutable uint64_t noise_ = 0, passes_ = 0;
  mutable bool training_ = false;
};

}  // namespace compact
