// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segment_node.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/autograd.h"
#include "compact/ops/memory_trace.h"
#include "compact/ops/segment.h"

namespace compact {

using torch::autograd::variable_list;

// Output 0 of the node's edges is the input's gradient, then one per parameter.
struct SegmentNode : torch::autograd::Node {
  const Segment* segment;
  Tensors tensors;                              // undefined where not stored as they are
  Tensors sides;                                // per step
  std::vector<Encoded> encoded, encoded_sides;  // where a codec stores them
  std::vector<Tensors> extras;                  // per step
  VersionCheck versions;
  Stage::Pass pass;  // key: of the whole pass
  bool released = false;

  explicit SegmentNode(const Segment& s) : segment(&s) {}
  std::string name() const override { return "CompActSegment"; }
  void release_variables() override {
    released = true;
    versions = {};
    tensors.clear();
    sides.clear();
    encoded.clear();
    encoded_sides.clear();
    extras.clear();
    pass.lengths = at::Tensor();
  }
  variable_list apply(variable_list&& grads) override;
  static at::Tensor run(const Segment& segment, at::Tensor x, const at::Tensor& lengths);

 private:
  static Stage::Pass of_step(const Stage::Pass& pass, size_t step) {
    return {pass.training, derive(pass.key, step), pass.lengths};
  }
  void restore(Tensors& t, int tensor, bool keep);
  // What a slot's codec left, where it has one; `x` is let go.
  static Encoded encode(const Slot& slot, at::Tensor& x, uint64_t key);
};

Encoded SegmentNode::encode(const Slot& slot, at::Tensor& x, uint64_t key) {
  if (slot.storage != Storage::kCodec || slot.name.empty() || !x.defined()) return {};
  COMPACT_CHECK(slot.codec->takes(x), "slot `", slot.name, "` = ", slot.treatment,
                ": not for tensors of ", c10::toString(x.scalar_type()), " ", x.sizes());
  Encoded e = slot.codec->encode(x, derive(key, label_of(slot.name.data(), slot.name.size())));
  x = at::Tensor();
  return e;
}

// `keep`: for another backward pass.
void SegmentNode::restore(Tensors& t, int tensor, bool keep) {
  if (t[tensor].defined()) return;
  if (encoded[tensor].defined()) {
    t[tensor] = encoded[tensor].restore();
    if (!keep) encoded[tensor] = {};
    return;
  }
  const Segment::Step& step = segment->steps_[tensor - 1];
  restore(t, step.input, keep);
  if (step.other >= 0) restore(t, step.other, keep);
  Stage::Forward f;
  f.again = true;
  f.pass = of_step(pass, tensor - 1);
  f.extras = extras[tensor - 1];
  // Probabilities that do not sum to 1, or a norm that is not one, would be worse than the
  // rounding.
  f.want_extras = step.stage && segment->rounded(step.input);
  t[tensor] = segment->run(tensor - 1, t, f);
  if (!f.extras.empty()) extras[tensor - 1] = std::move(f.extras);
  ++segment->recomputed_;
}

variable_list SegmentNode::apply(variable_list&& grads) {
  TORCH_CHECK(!released,
              "[segment] backward a second time: the saved tensors are freed; pass "
              "retain_graph=True to the first backward");
  TORCH_CHECK(!at::GradMode::is_enabled(), "[segment] gradients of gradients are not supported");
  versions.check("segment");
  const auto& steps = segment->steps_;
  trace_moment("backward of ", segment->name_);
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  Tensors t = keep_graph ? tensors : std::move(tensors);
  Tensors side = keep_graph ? sides : std::move(sides);
  if (!keep_graph) versions = {};
  variable_list result(1 + segment->parameters_.size());
  if (!grads[0].defined()) return result;
  Tensors g(t.size());
  g.back() = std::move(grads[0]);
  for (int i = static_cast<int>(steps.size()) - 1; i >= 0; --i) {
    const Segment::Step& step = steps[i];
    at::Tensor gy = std::move(g[i + 1]);
    if (!step.stage) {  // a sum passes its gradient to both; the later reader adds in place
      t[i + 1] = at::Tensor();
      g[step.other] = g[step.other].defined() ? g[step.other] + gy : gy;
      g[step.input] = std::move(gy);
      continue;
    }
    const Stage::Needs needs = step.stage->needs();
    const bool need_input = needs.input && !step.sketch;
    Stage::Backward b;
    if (needs.output) {
      restore(t, i + 1, keep_graph);
      b.output = std::move(t[i + 1]);
    }
    t[i + 1] = at::Tensor();
    // Tensor i has no reader before step i, so it dies here unless the stage that made it reads it.
    const bool last =
        step.input == i && i > 0 && !(steps[i - 1].stage && steps[i - 1].stage->needs().output);
    const Encoded& held = encoded[step.input];
    if (need_input && !t[step.input].defined() && step.stage->reads_means() && held.decode_means &&
        held.windows.size == held.windows.stride) {
      b.means = held.decode_means(held.parts);
      b.windows = held.windows;
    } else if (need_input) {
      restore(t, step.input, keep_graph);
      b.consume = last && !(keep_graph && segment->stored(step.input));
      b.input = last ? std::move(t[step.input]) : t[step.input];
    }
    b.gy = std::move(gy);
    b.side = std::move(side[i]);
    if (encoded_sides[i].defined()) {
      b.side = encoded_sides[i].restore();
      if (!keep_graph) encoded_sides[i] = {};
    }
    b.extras = &extras[i];
    b.pass = of_step(pass, i);
    b.sketch = step.sketch;
    b.residual = std::move(g[step.input]);
    b.want_input = i > 0 || task_should_compute_output(0);
    const size_t count = step.stage->parameters().size();
    for (size_t p = 0; p < count; ++p) {
      b.want_parameters.push_back(task_should_compute_output(1 + step.first_parameter + p));
    }
    b.gparameters.resize(count);
    g[step.input] = step.stage->backward(b);
    for (size_t p = 0; p < count; ++p)
      result[1 + step.first_parameter + p] = std::move(b.gparameters[p]);
  }
  result[0] = std::move(g[0]);
  trace_moment("backward before ", segment->name_);
  return result;
}

at::Tensor SegmentNode::run(const Segment& segment, at::Tensor x, const at::Tensor& lengths) {
  trace_moment("forward of ", segment.name_);
  Tensors leaves;
  for (const Parameter* p : segment.parameters_) leaves.push_back(p->leaf());
  const bool record = at::GradMode::is_enabled() && any_requires_grad(x, leaves);
  NodePtr owner;
  if (record) {
    owner = make_node<SegmentNode>(segment);
    leaves.insert(leaves.begin(), x);
    connect(owner, leaves);
  }
  auto* const node = static_cast<SegmentNode*>(owner.get());
  leaves.clear();
  const bool whole = segment.stored(0) && segment.slots_[0].storage == Storage::kKeep;
  if (record && whole) node->versions.add(x);
  const size_t count = segment.steps_.size();
  Tensors t(count + 1), sides(count);
  std::vector<int64_t> if_kept(count + 1), sides_if_kept(count);
  std::vector<Tensors> extras(count);
  std::vector<Encoded> encoded(count + 1), encoded_sides(count);
  const auto& slots = segment.slots_;
  const uint64_t noise = derive(derive(segment.noise_, segment.passes_++),
                                label_of(segment.name_.data(), segment.name_.size()));
  const Stage::Pass pass{segment.training_, noise, lengths};
  {
    at::NoGradGuard no_grad;
    t[0] = x.detach();
    if_kept[0] = static_cast<int64_t>(x.nbytes());
    x.reset();
    for (size_t i = 0; i < count; ++i) {
      const Segment::Step& step = segment.steps_[i];
      Stage::Forward f;
      f.want_extras = record;
      f.pass = of_step(pass, i);
      f.sketch = step.sketch && record;
      f.want_side = record && !step.side.name.empty() && step.side.storage != Storage::kRecompute;
      t[i + 1] = segment.run(i, t, f);
      if_kept[i + 1] = static_cast<int64_t>(t[i + 1].nbytes());
      sides[i] = std::move(f.side);
      sides_if_kept[i] = sides[i].defined() ? static_cast<int64_t>(sides[i].nbytes()) : 0;
      encoded_sides[i] = encode(step.side, sides[i], noise);
      extras[i] = std::move(f.extras);
      f.input = at::Tensor();
      for (size_t j = 0; j <= i; ++j) {
        if (segment.last_reader_[j] > static_cast<int>(i)) continue;
        if (record && t[j].defined() && slots[j].storage == Storage::kCodec) {
          encoded[j] = encode(slots[j], t[j], noise);
        }
        if (!(record && segment.stored(j))) t[j] = at::Tensor();
      }
    }
  }
  const at::Tensor y = std::move(t[count]);
  if (!record) return y;
  // A node that held its own output would never be freed.
  const int last = static_cast<int>(count);
  t[count] = segment.stored(last) && segment.read_in_backward(last) ? y.detach() : at::Tensor();
  encoded[count] = encode(slots[count], t[count], noise);

  std::vector<SlotBytes> rows;
  const auto row = [&](const Slot& slot, const at::Tensor& held, const Encoded& e, int64_t whole) {
    if (slot.name.empty()) return;
    const int64_t stored = held.defined() ? static_cast<int64_t>(held.nbytes()) : e.bytes();
    rows.push_back({slot.name, slot.treatment_name(), stored, whole});
  };
  int64_t small = 0;
  for (const Tensors& list : extras) small += bytes_of(list);
  row(slots[0], t[0], encoded[0], if_kept[0]);
  for (size_t i = 0; i < count; ++i) {
    row(segment.steps_[i].side, sides[i], encoded_sides[i], sides_if_kept[i]);
    row(slots[i + 1], t[i + 1], encoded[i + 1], if_kept[i + 1]);
  }
  if (small) rows.push_back({segment.name_ + ".extras", "keep", small, small});
  segment.saved_bytes_ = 0;
  for (const SlotBytes& r : rows) segment.saved_bytes_ += r.stored;
  segment.latest_ = std::move(rows);
  for (const Parameter* p : segment.parameters_) node->versions.add(p->weight);
  node->tensors = std::move(t);
  node->sides = std::move(sides);
  node->encoded = std::move(encoded);
  node->encoded_sides = std::move(encoded_sides);
  node->extras = std::move(extras);
  node->pass = pass;
  if (node->tensors[count].defined()) node->versions.add(y);
  torch::autograd::set_history(y, owner);
  return y;
}

at::Tensor run_segment(const Segment& segment, at::Tensor x, const at::Tensor& lengths) {
  return SegmentNode::run(segment, std::move(x), lengths);
}

}  // namespace compact
