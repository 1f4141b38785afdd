// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/op_tape_impl.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "compact/codecs/blocks.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/scopes/unseen_impl.h"

namespace compact {
namespace {

constexpr int kDeepest = 40;   // operations from what is held to what is rebuilt
constexpr int kLongest = 400;  // the same under a budget

bool runs_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

uint64_t stream_of(c10::Device device) {
  if (!device.is_cuda()) return 0;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<uint64_t>(guard.getStream(device).id());
}

OpTape::OpTape(RebuildOptions options, std::shared_ptr<LiveBytes> live, ParameterOf parameter)
    : rebuild_(std::make_shared<Rebuild>(options, std::move(live))),
      parameter_(std::move(parameter)),
      named_(options.named) {}

TapeNodePtr OpTape::put(const at::Tensor& t) {
  TapeNodePtr& n = index_[key_of(t)];
  n = std::make_shared<TapeNode>(t, calls_);
  n->stream = stream_of(t.device());
  return n;
}

TapeNodePtr OpTape::node_of(const at::Tensor& t) {
  const bool leaf = t.requires_grad() && t.is_leaf() && t.storage().resizable();
  const auto known = index_.find(key_of(t));
  if (known != index_.end() && !known->second->weak.expired()) {
    const TapeNodePtr& n = known->second;
    // NumPy may share its memory, or code other than operations wrote it.
    const bool exported = n->record && !t.storage().resizable();
    const bool resized = static_cast<int64_t>(t.storage().nbytes()) != n->bytes;
    if (n->writing || (!exported && !resized && n->is_unwritten())) {
      n->watch(t);
      if (leaf && named_ && !n->free && n->count == 0) n->external = n->leaf = true;
      // An autograd function gave it its gradient, and may have written it unseen.
      const bool given = t.requires_grad() && !t.is_leaf() && !n->grad && n->is_of_function();
      if (given && n->mode != TapeNode::Mode::kRecipe) n->record = nullptr;
      return n;
    }
    n->stale = true;
  }
  TapeNodePtr n = put(t);
  if (const std::optional<Parameter> parameter = parameter_(key_of(t))) {
    n->free = true;
    n->name = parameter->first;
    n->watch(parameter->second);
  }
  n->free |= leaf && !named_;
  n->leaf = leaf && !n->free;
  n->external = !n->free;
  return n;
}

void OpTape::note_write(Call& call, const at::Tensor& t, const TapeNodePtr& old,
                        c10::ArrayRef<Geometry> written) {
  Call::Write write{.t = t, .before = old};
  write.version = t.unsafeGetTensorImpl()->version_counter().current_version();
  const bool free = old->free;
  write.beside = rebuild_->before_write(*old, written);
  old->stale = true;
  TapeNodePtr n = put(t);
  n->versions = old->versions;
  n->watch(t);
  n->saved_before = old->saved || old->saved_before;
  n->writing = true;
  n->free = free;
  n->name = old->name;
  n->external = old->external;
  n->grad |= old->grad;
  write.after = std::move(n);
  call.writes.push_back(std::move(write));
}

std::unique_ptr<OpTape::Call> OpTape::begin(const OpRule& rule,
                                            c10::ArrayRef<const c10::IValue> arguments) {
  if (running_ || closed_ || arguments.size() != rule.written.size()) return nullptr;
  const bool notes = opaque_ == 0 && !runs_backward();
  const bool statistics = rule.statistics && (rule.statistics->training < 0 ||
                                              (arguments[rule.statistics->training].isBool() &&
                                               arguments[rule.statistics->training].toBool()));
  if (!notes && !rule.writes && !statistics) return nullptr;
  auto call = std::make_unique<Call>();
  call->rule = &rule;
  const Rebuild::Lock lock(*rebuild_);
  ++calls_;
  std::shared_ptr<Record> record;
  const bool budgeted = rebuild_->options().budgeted;
  const bool heavy = budgeted && rule.heavy && gives_the_same(*rule.heavy, arguments);
  const bool drops = rule.drops && is_plain(arguments[0].toTensor());
  const std::optional<double> scale = drops ? scale_of_dropout(arguments) : std::nullopt;
  if (notes && (rule.again || heavy || scale)) {
    record = std::make_shared<Record>(Record{.op = rule.op});
    record->arguments.reserve(arguments.size());
    record->threads = at::get_num_threads();
    record->grad_mode = c10::GradMode::is_enabled();
    record->mkldnn = at::globalContext().userEnabledMkldnn();
    record->heavy = heavy;
    if (heavy) record->precision = precision_settings();
  }
  // A mode may do anything in place of the operation.
  bool runs_again = record != nullptr && !c10::impl::TorchDispatchModeTLS::any_modes_set();
  struct Written {
    at::Tensor t;
    TapeNodePtr node;
    c10::SmallVector<Geometry, 1> parts;
  };
  c10::SmallVector<Written, 2> writes;
  call->not_negative = stays_not_negative(rule, arguments);
  const bool keeps = rule.not_negative == OpRule::Values::kKeeps;
  // Notes an input; returns the tensor that stands for it in the record.
  const auto input = [&](const at::Tensor& t, size_t argument, int element) -> at::Tensor {
    if (!t.defined()) return {};
    if (!is_plain(t)) {
      runs_again = call->not_negative = false;
      // Conjugates and negatives are views of what they write.
      if (!(rule.written[argument] && (t.is_conj() || t.is_neg()) && has_elements(t))) return {};
    }
    const bool ignored =
        statistics && (argument == rule.statistics->mean || argument == rule.statistics->mean + 1);
    if (record && !record->heavy && t.numel() == 0 && !rule.written[argument]) {
      // Such as a cache before its first tokens, which may be gone later: another one is the same.
      const Unseen unseen;
      call->inputs.push_back(t);
      return at::empty_strided(t.sizes(), t.strides(), t.options());
    }
    TapeNodePtr node = node_of(t);
    call->inputs.push_back(t);
    if (keeps) call->not_negative &= node->not_negative;
    if (rule.written[argument] || ignored) {
      const auto same = std::ranges::find(writes, node, &Written::node);
      Written& write = same != writes.end() ? *same : writes.emplace_back(Written{t, node, {}});
      // It may be resized first, and lie elsewhere then.
      write.parts.push_back(rule.resizes ? Geometry::flat(at::kByte, node->bytes)
                                         : Geometry::of(t));
    }
    if (!record || ignored) return {};
    call->trained |= t.requires_grad();
    // An optimizer may update it inside the backward pass, since no gradient goes through it.
    if (node->grad && !t.requires_grad()) runs_again = false;
    if (node->stream != stream_of(t.device())) runs_again = false;
    record->traffic += t.numel() * static_cast<int64_t>(t.element_size());
    record->inputs.push_back(
        {argument, element, rule.written[argument], std::move(node), Geometry::of(t)});
    return {};
  };
  for (size_t a = 0; a < arguments.size(); ++a) {
    const c10::IValue& v = arguments[a];
    c10::IValue kept;
    if (v.isTensor()) {
      const at::Tensor& t = v.toTensor();
      // A number of Python's has a type of its own kind.
      if (t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number()) {
        kept = v;
      } else {
        if (at::Tensor same = input(t, a, -1); same.defined()) kept = std::move(same);
      }
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> blank;
      int element = 0;
      for (const at::Tensor& t : v.toTensorVector()) {
        blank.push_back(input(t, a, element++));
      }
      kept = std::move(blank);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> blank;
      int element = 0;
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector()) {
        at::Tensor same = t ? input(*t, a, element) : at::Tensor();
        ++element;
        blank.push_back(same.defined() ? std::optional(std::move(same)) : std::nullopt);
      }
      kept = std::move(blank);
    } else {
      kept = v;
    }
    if (record) record->arguments.push_back(std::move(kept));
  }
  if (record && scale) {
    static const auto kAgain =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_dropout_backward", "");
    record->op = kAgain;
    record->arguments = {{}, {}, *scale};
  }
  if (runs_again && rebuild_->options().rounds) {
    const RoundedInputs rounded = rebuild_->rounded_of(*record);
    record->smooth = is_smooth(rule, arguments, rounded);
    record->signs = signs_of(rule, arguments, rounded, [&](size_t argument) {
      return std::ranges::any_of(record->inputs, [&](const Record::Input& input) {
        return input.argument == argument && input.node->not_negative;
      });
    });
  }
  if (runs_again) call->record = std::move(record);
  for (const Written& w : writes) note_write(*call, w.t, w.node, w.parts);
  running_ = call.get();
  return call;
}

void OpTape::end(std::unique_ptr<Call> call, c10::ArrayRef<const c10::IValue> results) {
  running_ = nullptr;
  if (closed_) return;
  const Rebuild::Lock lock(*rebuild_);
  const bool failed = results.size() != call->rule->op.schema().returns().size();
  if (failed) call->record = nullptr;
  struct Made {
    TapeNodePtr node;
    int output;
    bool trained;
  };
  c10::SmallVector<Made, 3> made;
  int number = 0;
  const auto output = [&](const at::Tensor& t) {
    const int output = number++;
    if (!is_plain(t)) return;
    const void* const key = key_of(t);
    const auto same = [&](const at::Tensor& in) { return key_of(in) == key; };
    if (std::ranges::any_of(call->inputs, same)) return;  // a view of it
    TapeNodePtr n;
    // Autograd has saved it already, before it was known here.
    if (const auto known = index_.find(key);
        known != index_.end() && !known->second->weak.expired() && known->second->external &&
        known->second->call == calls_) {
      n = known->second;
    } else {
      n = put(t);
    }
    if (std::ranges::find(made, n, &Made::node) != made.end()) return;
    n->external = false;
    n->grad |= t.requires_grad();
    n->geometry = Geometry::of(t);
    n->note_versions();
    const auto elsewhere = [&](const at::Tensor& in) { return in.device() != t.device(); };
    if (std::ranges::any_of(call->inputs, elsewhere)) {
      if (n->bytes <= 16) return;  // a seed of attention
      call->record = nullptr;      // without the synchronization that the caller may have done
    }
    made.push_back({std::move(n), output, t.requires_grad()});
  };
  for (const c10::IValue& value : results) {
    if (value.isTensor()) {
      output(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) output(t);
    }
  }
  for (Call::Write& write : call->writes) {
    for (const TapeNodePtr& n : write.beside) n->note_versions();
    TapeNode& n = *write.after;
    n.writing = false;
    n.note_versions();
    if (!n.weak.expired() && key_of(write.t) == n.weak._unsafe_get_target()) {
      n.bytes = static_cast<int64_t>(write.t.storage().nbytes());  // it may have been resized
    }
    n.grad |= write.t.requires_grad();
    if (!call->record || n.free || n.external) continue;
    const auto& inputs = call->record->inputs;
    const auto at = std::ranges::find_if(inputs, [](const auto& input) { return input.written; });
    if (at == inputs.end()) continue;
    n.geometry = at->geometry;
    made.push_back(
        {write.after, -1 - static_cast<int>(at - inputs.begin()), write.t.requires_grad()});
  }
  if (makes_two_values(*call)) {
    for (const Made& m : made) m.node->two_values = true;
    for (const Call::Write& write : call->writes) {
      write.after->two_values = Geometry::of(write.t).bytes() == write.after->bytes;
    }
  }
  if (call->not_negative) {
    for (const Made& m : made) m.node->not_negative = true;
    for (const Call::Write& write : call->writes) {
      write.after->not_negative =
          write.before->not_negative || Geometry::of(write.t).bytes() == write.after->bytes;
    }
  }
  sweep();
  if (call->rule->drops && call->record) {
    if (made.size() == 2) {
      const TapeNodePtr& mask = made[1].node;
      call->record->traffic += mask->bytes;
      call->record->inputs.push_back({1, -1, false, mask, mask->geometry});
      made.resize(1);
    } else {
      call->record = nullptr;
    }
  }
  // The history of what cannot run again ends here.
  if (!call->record || made.empty()) return;
  Record& record = *call->record;
  int depth = 0;
  for (const Record::Input& in : record.inputs) depth = std::max(depth, in.node->depth);
  const bool budgeted = rebuild_->options().budgeted;
  if (depth >= (budgeted ? kLongest : kDeepest)) return;
  if (record.heavy) {
    c10::SmallVector<c10::IntArrayRef, 4> sizes;
    for (const Record::Input& in : record.inputs) sizes.push_back(in.geometry.sizes);
    record.traffic += work_of(*call->rule->heavy, sizes, made.front().node->geometry.sizes,
                              record.arguments, device_type_of(call->inputs[0]) == at::kCPU);
  }
  for (const Made& m : made) record.traffic += m.node->bytes;
  bool any = false;
  for (const Made& m : made) {
    if (call->trained && !m.trained) continue;
    record.outputs.push_back(m.node);
    m.node->record = call->record;
    m.node->output = m.output;
    m.node->depth = depth + 1;
    if (budgeted) rebuild_->note_reach(*m.node, record);
    any = true;
    for (const Record::Input& in : record.inputs) in.node->add_follower(m.node);
  }
  if (!any) return;
  for (const Made& m : made) {
    if (budgeted && m.node->mode == TapeNode::Mode::kHeld) rebuild_->cut(*m.node);
    rebuild_->decide_again(*m.node);
  }
}

bool OpTape::makes_two_values(const Call& call) const {
  using Values = OpRule::Values;
  if (call.rule->two_values != Values::kKeeps) {
    return call.rule->two_values == Values::kMakes;
  }
  const at::Tensor* one = nullptr;
  for (const at::Tensor& t : call.inputs) {
    if (!only_counted(t)) return false;  // others can be asked for their values
    if (t.numel() == 1) continue;
    if (std::exchange(one, &t)) return false;
  }
  if (!one) return false;
  if (one->scalar_type() == at::kBool) return true;
  for (const Call::Write& write : call.writes) {
    if (write.t.is_same(*one)) return write.before->two_values;
  }
  const auto known = index_.find(key_of(*one));
  return known != index_.end() && known->second->two_values;
}

bool OpTape::has_two_values(const at::Tensor& t) const {
  const Rebuild::Lock lock(*rebuild_);
  const auto known = index_.find(key_of(t));
  return known != index_.end() && !known->second->weak.expired() && known->second->two_values &&
         known->second->is_unwritten();
}

void OpTape::note_made(const at::Tensor& t) {
  if (closed_ || opaque_ > 0 || !is_plain(t)) return;
  const Rebuild::Lock lock(*rebuild_);
  const auto known = index_.find(key_of(t));
  if (known == index_.end() || known->second->weak.expired()) put(t);
}

Rebuild::Row OpTape::row(size_t row) const {
  const Rebuild::Lock lock(*rebuild_);
  return row < rebuild_->rows().size() ? rebuild_->rows()[row] : Rebuild::Row{};
}

bool OpTape::keep_within(int64_t budget) {
  const Rebuild::Lock lock(*rebuild_);
  return rebuild_->keep_within(budget);
}

int64_t OpTape::span() const {
  const Rebuild::Lock lock(*rebuild_);
  return rebuild_->span();
}

uint64_t OpTape::calls() const {
  const Rebuild::Lock lock(*rebuild_);
  return calls_;
}

void OpTape::close() {
  const Rebuild::Lock lock(*rebuild_);
  if (std::exchange(closed_, true)) return;
  rebuild_->close();
  index_.clear();
  parameter_ = nullptr;
}

void OpTape::sweep() {
  if (index_.size() < sweep_at_) return;
  std::erase_if(index_, [](const auto& entry) { return entry.second->weak.expired(); });
  sweep_at_ = std::max<size_t>(256, 2 * index_.size());
}

}  // namespace compact
