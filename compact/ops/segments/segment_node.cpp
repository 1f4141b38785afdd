// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segments/segment_node_impl.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/memory/memory_trace.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/segments/early_restore_impl.h"
#include "compact/ops/segments/held_tensors_impl.h"
#include "compact/ops/segments/segment.h"
#include "compact/ops/segments/tiles_impl.h"

namespace compact {

using torch::autograd::variable_list;

// Output 0 of the node's edges is the input's gradient, then one per parameter.
struct SegmentNode : torch::autograd::Node {
  SegmentNode(std::shared_ptr<const Recipe> recipe, std::shared_ptr<std::atomic<int64_t>> rebuilt)
      : recipe(std::move(recipe)), rebuilt(std::move(rebuilt)) {}
  std::string name() const override { return "CompActSegment"; }
  void release_variables() override {
    released = true;
    early.drop();
    held = {};
  }
  variable_list apply(variable_list&& grads) override;
  static at::Tensor run(const std::shared_ptr<const Recipe>& own, at::Tensor x,
                        std::vector<Weight> weights, const SegmentPass& pass,
                        SegmentReport* report);

 private:
  static SegmentPass of_step(SegmentPass pass, size_t step) {
    pass.noise = derive(pass.noise, step);
    return pass;
  }
  // One backward pass.
  struct Back {
    HeldTensors h;
    bool keep_graph = false;
    Wanted wanted;
    std::vector<bool> made;  // of which tensors a gradient is made
    Tensors g;               // per tensor
    variable_list result;
  };
  // Begins the restores of the segment whose backward pass comes next, where that is known.
  void begin_next() const;
  // Restores or rebuilds a tensor of `h` that is not there.
  void restore(HeldTensors& h, int tensor) const;
  // Gradients of step i, from that of what it made.
  void step_back(Back& back, int i, at::Tensor gy) const;
  // The same of steps that run by tiles.
  void tiles_back(Back& back, const Recipe::Tiles& tiles, at::Tensor gy) const;
  // Encodes x by the slot's codec and releases it; without a codec does nothing.
  static Encoded encode(const Slot& slot, at::Tensor& x, uint64_t key);

  std::shared_ptr<const Recipe> recipe;
  std::shared_ptr<std::atomic<int64_t>> rebuilt;  // the report's counter; null: no report
  HeldTensors held;
  bool released = false;
  EarlyRestore early;
};

void SegmentNode::begin_next() const {
  torch::autograd::Node* node = next_edge(0).function.get();
  // Passes forks, views and the like.
  for (int depth = 0; node && depth < 4; ++depth) {
    if (auto* segment = dynamic_cast<SegmentNode*>(node)) {
      if (segment->released || !runs_in_this_pass(node)) return;
      return segment->early.begin(segment->held.codes());
    }
    node = node->num_outputs() == 1 ? node->next_edge(0).function.get() : nullptr;
  }
}

Encoded SegmentNode::encode(const Slot& slot, at::Tensor& x, uint64_t key) {
  if (!slot.treatment.codec() || slot.name.empty() || !x.defined()) return {};
  COMPACT_CHECK(slot.treatment.codec()->takes(x), "slot `", slot.name,
                "` = ", slot.treatment.text(), ": not for tensors of ",
                c10::toString(x.scalar_type()), " ", x.sizes());
  RECORD_USER_SCOPE(kCodecScope);
  Encoded e =
      slot.treatment.codec()->encode(x, derive(key, label_of(slot.name.data(), slot.name.size())));
  x = at::Tensor();
  return e;
}

void SegmentNode::restore(HeldTensors& h, int tensor) const {
  if (h.tensors[tensor].defined()) return;
  if (h.encoded[tensor].defined()) {
    h.tensors[tensor] = h.encoded[tensor].restore();
    h.encoded[tensor] = {};
    return;
  }
  if (const Recipe::Tiles* const tiles = recipe->tiles_of(tensor - 1)) {
    const int input = recipe->steps[tiles->first].input;
    restore(h, input);
    if (runs_by_tiles(tiles, h.tensors[input])) {
      h.tensors[tensor] = run_tiles(*recipe, *tiles, h.tensors, h.weights, h.pass);
      // The first step made its result there.
      if (recipe->overwritable[input]) h.tensors[input] = at::Tensor();
      if (rebuilt) *rebuilt += tiles->last + 1 - tiles->first;
      return;
    }
  }
  const Recipe::Step& step = recipe->steps[tensor - 1];
  restore(h, step.input);
  if (step.other >= 0) restore(h, step.other);
  Stage::Forward f;
  f.again = true;
  f.pass = of_step(h.pass, tensor - 1);
  f.extras = h.extras[tensor - 1];
  // Computed again from a rounded input: with statistics of the exact one probabilities would not
  // sum to 1, which is worse than the rounding.
  f.want_extras = step.stage && recipe->rounded(step.input);
  h.tensors[tensor] = recipe->run(tensor - 1, h.tensors, h.weights, f);
  if (!f.extras.empty()) h.extras[tensor - 1] = std::move(f.extras);
  if (rebuilt) ++*rebuilt;
}

void SegmentNode::step_back(Back& back, int i, at::Tensor gy) const {
  const auto& steps = recipe->steps;
  const Recipe::Step& step = steps[i];
  HeldTensors& h = back.h;
  Stage::Backward b = recipe->backward_of(i, back.wanted, back.made, h.weights);
  if (step.stage->needs().output) {
    // If the input comes back rounded, recompute the output from it: softmax statistics of the
    // exact input would not make probabilities that sum to 1.
    const bool rebuilt = recipe->slots[i + 1].treatment.storage() == Storage::kRecompute;
    if (!rebuilt && step.stage->needs().input && recipe->rounded(step.input)) {
      h.tensors[i + 1] = at::Tensor();
      h.encoded[i + 1] = {};
    }
    restore(h, i + 1);
    b.output = std::move(h.tensors[i + 1]);
  }
  h.tensors[i + 1] = at::Tensor();
  const bool need_input = step.reads_input(back.wanted);
  // Tensor i has no reader before step i, so it dies here unless the stage that made it reads it.
  const bool last =
      step.input == i && i > 0 && !(steps[i - 1].stage && steps[i - 1].stage->needs().output);
  const Encoded& in_code = h.encoded[step.input];
  if (need_input && !h.tensors[step.input].defined() && step.stage->reads_means() &&
      in_code.decode_means && in_code.windows.size == in_code.windows.stride) {
    b.means = in_code.means();
    b.windows = in_code.windows;
  } else if (need_input) {
    restore(h, step.input);
    b.consume = last && !(back.keep_graph && recipe->stored(step.input));
    b.input = last ? std::move(h.tensors[step.input]) : h.tensors[step.input];
  }
  b.gy = std::move(gy);
  b.side = std::move(h.sides[i]);
  if (h.encoded_sides[i].defined()) {
    b.side = h.encoded_sides[i].restore();
    h.encoded_sides[i] = {};
  }
  b.extras = &h.extras[i];
  b.pass = of_step(h.pass, i);
  b.sketch = step.sketch;
  b.residual = std::move(back.g[step.input]);
  at::Tensor gx = step.stage->backward(b);
  if (b.want_input) back.g[step.input] = std::move(gx);
  std::move(b.gparameters.begin(), b.gparameters.end(),
            back.result.begin() + 1 + step.first_parameter);
}

void SegmentNode::tiles_back(Back& back, const Recipe::Tiles& tiles, at::Tensor gy) const {
  HeldTensors& h = back.h;
  const int input = recipe->steps[tiles.first].input;
  const auto whole = [&] {
    restore(h, input);
    return h.tensors[input];
  };
  TilesBack b{.gy = std::move(gy),
              .residual = std::move(back.g[input]),
              .input = whole,
              .weights = h.weights,
              .pass = h.pass,
              .wanted = back.wanted,
              .made = back.made,
              .gparameters = std::span(back.result).subspan(1)};
  int64_t again = 0;
  back.g[input] = run_tiles_back(*recipe, tiles, std::move(b), again);
  if (rebuilt) *rebuilt += again;
}

variable_list SegmentNode::apply(variable_list&& grads) {
  TORCH_CHECK(!released,
              "[segment] backward a second time, or after a backward pass that failed: the saved "
              "tensors are freed; pass retain_graph=True to the first backward");
  TORCH_CHECK(!at::GradMode::is_enabled(), "[segment] gradients of gradients are not supported");
  held.versions.check("segment", recipe->name);
  for (const Weight& w : held.weights) {
    TORCH_CHECK(!w.carrier || w.carrier->draw == w.draw,
                "[segment] projections of a weight's gradient were drawn again between the forward "
                "and the backward pass: draw ",
                w.carrier->draw, ", expected ", w.draw);
  }
  const NoAutocast no_autocast;
  trace_moment(Phase::kBackwardOf, recipe->name);
  Back back{.keep_graph = torch::autograd::get_current_graph_task_keep_graph()};
  released = !back.keep_graph;
  back.h = back.keep_graph ? held : std::exchange(held, {});
  back.h.versions = {};
  early.replace(back.h.codes());
  back.result.resize(1 + static_cast<size_t>(recipe->parameters));
  if (!grads[0].defined()) return std::move(back.result);
  for (size_t k = 0; k < back.result.size(); ++k) {
    back.wanted.push_back(task_should_compute_output(k));
  }
  if (back.wanted[0]) begin_next();
  const FetchedWeights fetched(back.h.weights, /*backward=*/true);
  const std::vector<bool>& made = back.made = recipe->gradients(back.wanted);
  Tensors& g = back.g;
  g.resize(back.h.tensors.size());
  g.back() = std::move(grads[0]);
  for (int i = static_cast<int>(recipe->steps.size()) - 1; i >= 0; --i) {
    const Recipe::Step& step = recipe->steps[i];
    at::Tensor gy = std::move(g[i + 1]);
    if (step.stage && made[i + 1]) {
      const Recipe::Tiles* const tiles = recipe->tiles_of(i);
      if (runs_by_tiles(tiles, gy)) {
        i = tiles->first;
        tiles_back(back, *tiles, std::move(gy));
      } else {
        step_back(back, i, std::move(gy));
      }
      continue;
    }
    back.h.tensors[i + 1] = at::Tensor();
    if (step.stage) continue;
    // A sum passes its gradient to both terms.
    for (const int t : {step.other, step.input}) {
      if (made[t]) g[t] = g[t].defined() ? g[t] + gy : gy;
    }
  }
  back.result[0] = std::move(g[0]);
  trace_moment(Phase::kBackwardBefore, recipe->name);
  return std::move(back.result);
}

at::Tensor SegmentNode::run(const std::shared_ptr<const Recipe>& own, at::Tensor x,
                            std::vector<Weight> weights, const SegmentPass& pass,
                            SegmentReport* report) {
  const Recipe& recipe = *own;
  COMPACT_CHECK(static_cast<int>(weights.size()) == recipe.parameters, "[segment] `", recipe.name,
                "` takes ", recipe.parameters, " weights, not ", weights.size());
  COMPACT_CHECK(x.is_floating_point(), "[segment] `", recipe.name,
                "` takes real floating-point tensors, not ", c10::toString(x.scalar_type()));
  trace_moment(Phase::kForwardOf, recipe.name);
  const NoAutocast no_autocast;
  const OpWatch::AsOne as_one;
  Tensors leaves = {x}, sources;
  for (Weight& w : weights) {
    leaves.push_back(std::move(w.leaf));
    sources.push_back(std::move(w.source));
  }
  for (const at::Tensor& leaf : leaves) check_plain("segment", leaf);
  const bool record = at::GradMode::is_enabled() && any_requires_grad(leaves);
  const size_t count = recipe.steps.size();
  NodePtr owner;
  Wanted wanted;
  if (record) {
    owner = make_node<SegmentNode>(own, report ? report->rebuilt : nullptr);
    connect(owner, leaves);
    for (const at::Tensor& leaf : leaves) wanted.push_back(leaf.defined() && leaf.requires_grad());
  } else {
    wanted.assign(leaves.size(), false);
  }
  COMPACT_CHECK(recipe.finished, "[segment] `", recipe.name,
                "`: finish() must be called once all stages are there");
  COMPACT_CHECK(!record || !pass.cache, "[segment] `", recipe.name,
                "`: a pass with a cache of tokens makes no graph; call it under NoGradGuard");
  leaves.clear();
  const Recipe::Demand demand = recipe.demand(wanted);
  const auto& slots = recipe.slots;
  HeldTensors h;
  h.weights = std::move(weights);
  if (demand.tensors[0] && slots[0].treatment.storage() == Storage::kKeep) h.versions.add(x);
  for (const at::Tensor& input : {pass.lengths, pass.ranges, pass.cos, pass.sin}) {
    if (record && input.defined()) h.versions.add(input);
  }
  h.tensors.resize(count + 1);
  h.sides.resize(count);
  h.encoded.resize(count + 1);
  h.encoded_sides.resize(count);
  h.extras.resize(count);
  std::vector<int64_t> if_kept(count + 1), sides_if_kept(count);
  const uint64_t noise =
      derive(derive(pass.noise, 0), label_of(recipe.name.data(), recipe.name.size()));
  h.pass = {.training = pass.training, .noise = noise, .lengths = pass.lengths};
  h.pass.ranges = pass.ranges;
  h.pass.cos = pass.cos;
  h.pass.sin = pass.sin;
  h.pass.products = pass.products;
  h.pass.cache = pass.cache;
  Tensors& t = h.tensors;
  {
    const FetchedWeights fetched(h.weights, /*backward=*/false);
    at::NoGradGuard no_grad;
    t[0] = x.detach();
    if_kept[0] = static_cast<int64_t>(x.nbytes());
    x.reset();
    for (size_t i = 0; i < count; ++i) {
      const Recipe::Step& step = recipe.steps[i];
      const Recipe::Tiles* const tiles = recipe.tiles_of(static_cast<int>(i));
      if (record && report && tiles && tiles->first == static_cast<int>(i)) {
        report->tiles.push_back({tiles->tokens, count_tiles(*tiles, t[step.input])});
      }
      if (runs_by_tiles(tiles, t[step.input])) {
        i = static_cast<size_t>(tiles->last);
        t[i + 1] = run_tiles(recipe, *tiles, t, h.weights, h.pass, &if_kept, &sides_if_kept);
      } else {
        Stage::Forward f;
        f.want_extras = demand.back[i] || demand.again[i];
        f.pass = of_step(h.pass, i);
        f.sketch = step.sketch && step.wants_matrix(wanted);
        f.want_side = demand.back[i] && !step.side.name.empty() &&
                      step.side.treatment.storage() != Storage::kRecompute;
        t[i + 1] = recipe.run(i, t, h.weights, f);
        if_kept[i + 1] = static_cast<int64_t>(t[i + 1].nbytes());
        h.sides[i] = std::move(f.side);
        sides_if_kept[i] = step.side.name.empty() ? 0
                                                  : t[i + 1].numel() / t[i + 1].size(-1) *
                                                        step.side.width * t[i + 1].element_size();
        h.encoded_sides[i] = encode(step.side, h.sides[i], noise);
        h.extras[i] = std::move(f.extras);
      }
      for (size_t j = 0; j <= i; ++j) {
        if (recipe.last_reader[j] > static_cast<int>(i)) continue;
        if (demand.tensors[j] && t[j].defined() && slots[j].treatment.codec()) {
          h.encoded[j] = encode(slots[j], t[j], noise);
        }
        if (!demand.tensors[j]) t[j] = at::Tensor();
      }
    }
  }
  const at::Tensor y = std::move(t[count]);
  if (!record) return y;
  // A node that held its own output would never be freed.
  t[count] = demand.tensors[count] ? y.detach() : at::Tensor();
  h.encoded[count] = encode(slots[count], t[count], noise);
  settle_copies(h.codes());

  if (report) {
    for (SlotBytes& row : h.rows(recipe, if_kept, sides_if_kept)) {
      report->saved_bytes += row.stored;
      report->slots.push_back(std::move(row));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!demand.back[i] && !demand.again[i]) continue;
    const Recipe::Step& step = recipe.steps[i];
    for (int k = 0; k < step.parameters; ++k) h.versions.add(sources[step.first_parameter + k]);
  }
  if (t[count].defined()) h.versions.add(y);
  static_cast<SegmentNode*>(owner.get())->held = std::move(h);
  torch::autograd::set_history(y, owner);
  OpWatch::AsOne::made(y);
  return y;
}

at::Tensor run_segment(const std::shared_ptr<const Recipe>& recipe, at::Tensor x,
                       std::vector<Weight> weights, const SegmentPass& pass,
                       SegmentReport* report) {
  return SegmentNode::run(recipe, std::move(x), std::move(weights), pass, report);
}

}  // namespace compact
