// SPDX-License-Identifier: Apache-2.0
// The structure of a segment: which tensor is made of which, and which are held for the backward
// pass. Fixed once made: graphs share it and may outlive the segment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compact/ops/policy/role.h"
#include "compact/ops/policy/treatment.h"
#include "compact/ops/segments/stage.h"

namespace compact {

class Policy;

// A named tensor of a segment.
struct Slot {
  std::string name;  // layers.0.attn.norm
  int64_t width =
      0;  // elements per token; of side outputs, which may never be made, and of codecs needed
  Treatment treatment = {};
  Role role = Role::kNone;
};
// A slot that is treated as the policy says. Throws InputError on `chunk`, which is for losses.
Slot slot_of(const Policy& policy, const std::string& name, Role role, int64_t width = 0);

// Which gradients a pass is to give: of the segment's input, then of each parameter.
using Wanted = std::vector<bool>;

struct Recipe {
  struct Step {
    std::shared_ptr<const Stage> stage;          // null: residual add
    std::shared_ptr<const Stage> added = stage;  // as added: fit_stages() may replace `stage`
    int input = 0, other = -1;
    Slot side = {};
    int first_parameter = 0, parameters = 0;
    bool sketch = false;

    // Whether its backward reads its input, where these gradients are wanted.
    bool reads_input(const Wanted& wanted) const;
    // Whether the gradient of one of its matrices is wanted.
    bool wants_matrix(const Wanted& wanted) const;
    Weights weights_of(Weights all) const { return all.subspan(first_parameter, parameters); }
  };
  // Steps, one after the other, that run on some tokens at a time: no tensor between them is ever
  // whole.
  struct Tiles {
    int first = 0, last = 0;
    int64_t tokens = 0;
  };
  // The tensors that one pass leaves for its backward pass, and the steps of that pass.
  struct Demand {
    std::vector<bool> tensors;  // to be held, among those whose slot stores
    std::vector<bool> back;     // steps whose stage runs backward
    std::vector<bool> again;    // steps that it runs again, to rebuild what they made
  };

  std::string name;         // layers.3
  std::vector<Slot> slots;  // one per tensor; [0] is the input
  std::vector<Step> steps;
  int parameters = 0;
  std::vector<Tiles> tiles;        // in the order of their steps
  bool finished = false;           // since its last step was added
  std::vector<int> last_reader;    // last step that reads a tensor in the forward pass
  std::vector<bool> overwritable;  // one forward reader, never stored nor read by a backward; if no
                                   // other tensor has its memory

  // Appends a step that makes tensor steps.size().
  void add(Step step, Slot output);
  // Computes what follows from slots and steps. Throws InputError naming the slot.
  void finish();
  // Gives slots of which signs are read a codec that keeps signs. Throws InputError naming the slot
  // whose codec loses what a backward pass reads.
  void fit_codecs();
  // Finds the tiles. A slot between operations that cannot run so is `recompute` from now on.
  // Throws InputError naming the slot.
  void fit_tiles();
  // Switches stages to a mask of their own where the slot that they would read loses signs.
  void fit_stages();

  Wanted everything() const { return Wanted(1 + static_cast<size_t>(parameters), true); }
  // The tensors whose gradients are computed, where these are wanted.
  std::vector<bool> gradients(const Wanted& wanted) const;
  Demand demand(const Wanted& wanted) const;
  // The tiles that step i belongs to; null: none.
  const Tiles* tiles_of(int i) const;
  // Whether the backward pass of step i reads its input, or needs it to make extras again.
  bool reads_input(int i, const Wanted& wanted) const;

  bool read_in_backward(int tensor) const;
  bool stored(int tensor) const;          // as it is or by a codec
  bool rebuilt(int tensor) const;         // can be, from what is stored
  bool can_be_rebuilt(int tensor) const;  // from what could be stored
  // Whether a tensor comes back rounded: by its own codec, or made from one that does.
  bool rounded(int tensor) const;
  // The part of a tensor that its slot preserves.
  Content content(int tensor) const;
  // The arguments of step i's backward pass that say what is wanted, and its weights. `made`:
  // gradients(wanted).
  Stage::Backward backward_of(int i, const Wanted& wanted, const std::vector<bool>& made,
                              Weights weights) const;
  // Runs step i on tensors `t`, with the weights of all stages.
  at::Tensor run(size_t i, Tensors& t, Weights weights, Stage::Forward& f) const;
};

}  // namespace compact
