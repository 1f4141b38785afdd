// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensor_store.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <span>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/scopes/fused_attention_impl.h"
#include "compact/ops/scopes/held_tensor_impl.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_names_impl.h"
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

namespace compact {

namespace {

// Through views and casts: whether the tensor is a parameter's, or any leaf's.
bool of_leaf(const at::Tensor& t) {
  if (!t.requires_grad()) return false;
  if (t.is_leaf() || (t.is_view() && t._base().is_leaf())) return true;
  auto node = t.grad_fn();
  for (int depth = 0; node && depth < 4; ++depth) {
    static const std::set<std::string> kSame = {
        "ToCopyBackward0",    "TBackward0",       "TransposeBackward0",  "ViewBackward0",
        "AsStridedBackward0", "PermuteBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"};
    if (!kSame.contains(node->name()) || node->num_outputs() == 0) return false;
    const auto& next = node->next_edge(0).function;
    if (next && next->name() == "torch::autograd::AccumulateGrad") return true;
    node = next;
  }
  return false;
}

// Whether its elements lie in memory that codecs can read.
bool is_strided(const at::Tensor& t) {
  static const auto kWrapped =
      c10::functorch_transforms_ks |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return t.layout() == at::kStrided && t.has_storage() && !t.is_nested() && !t.is_quantized() &&
         !t.key_set().has_any(kWrapped);
}

bool has_plain_bits(const at::Tensor& t) { return !t.is_conj() && !t.is_neg(); }

}  // namespace

SavedTensorStore::SavedTensorStore(Policy policy, SavedTensorOptions options)
    : policy_(std::move(policy)),
      budget_(budget_of(policy_.slot("", Role::kHeavy).first())),
      options_(std::move(options)),
      names_(std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers)),
      all_live_(std::make_shared<LiveBytes>()),
      live_(std::make_shared<LiveBytes>(all_live_)) {
  start_tape();
}

SavedTensorStore::~SavedTensorStore() { stop_tape(); }

void SavedTensorStore::begin(Named parameters, Named buffers, uint64_t noise) {
  const std::lock_guard lock(mutex_);
  options_.parameters = std::move(parameters);
  options_.buffers = std::move(buffers);
  options_.noise = noise;
  names_ = std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers);
  live_ = std::make_shared<LiveBytes>(all_live_);
  start_tape();
  saved_.clear();
  rounded_ = false;
  saved_before_ = std::exchange(saved_bytes_, 0);
  span_ = approached_ = 0;
  counted_ = 0;
  entries_.clear();
  made_again_.clear();
}

void SavedTensorStore::forget() {
  const std::lock_guard lock(mutex_);
  saved_before_ = approached_ = 0;  // the part is of this pass
  if (tape_ && budget_) tape_->keep_within(budget_now());
  stop_tape();
  options_.parameters.clear();
  options_.buffers.clear();
  names_ = std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers);
  entries_.clear();
  made_again_.clear();
}

SavedTensorReport SavedTensorStore::report() const {
  const std::lock_guard lock(mutex_);
  return {taped_rows(), tape_ ? tape_->span() : span_};
}

bool SavedTensorStore::rounded() const {
  const std::lock_guard lock(mutex_);
  return rounded_;
}

HeldTensor SavedTensorStore::pack(const at::Tensor& t, bool again) {
  const at::NoGradGuard no_grad;
  HeldTensor held;
  held.strided_ = is_strided(t);
  if (held.strided_) {
    held.sizes_ = t.sizes().vec();
    held.strides_ = t.strides().vec();
    held.offset_ = t.storage_offset();
    held.flat_ = t.is_non_overlapping_and_dense();
  }
  if (std::optional<HeldTensor> made = pack_made_again(t)) return std::move(*made);
  const RunningOp* const op = OpWatch::current();
  const bool attends = op && !op->arguments.empty() && held.strided_;
  if (attends && !op->attention) op->attention = std::make_shared<FusedAttention>(*op);
  const std::lock_guard lock(mutex_);
  keep_budget(true);
  held.memory_ = hold(t, held.strided_, again);
  keep_budget(false);
  if (attends) op->attention->note(t, held);
  return held;
}

std::optional<HeldTensor> SavedTensorStore::pack_made_again(const at::Tensor& t) {
  const RunningOp* const op = OpWatch::current();
  // Queries and keys of the operation were packed before its results.
  const FusedAttention* const attention = op ? op->attention.get() : nullptr;
  if (!attention || !is_strided(t) || !attention->rounds_scores() || !attention->can_make(t) ||
      std::ranges::find(op->inputs, storage_of(t)) != op->inputs.end()) {
    return std::nullopt;
  }
  HeldTensor held;
  held.attention_ = op->attention;
  held.values_ = attention->is_values(t);
  static const Treatment kAgain = Treatment::parse("recompute");
  const std::lock_guard lock(mutex_);
  SavedTensor row{.name = names_->next(t).text, .treatment = kAgain, .sizes = t.sizes().vec()};
  row.type = t.scalar_type();
  row.bytes = t.numel() * t.element_size();
  saved_.push_back(std::move(row));
  made_again_.insert_or_assign(storage_of(t), t.storage().getWeakStorageImpl());
  return held;
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::whole(const at::Tensor& t) const {
  auto memory = std::make_shared<Memory>();
  memory->plain = t.detach();  // a node that held its own output would never be freed
  memory->version = static_cast<uint32_t>(t._version());
  return memory;
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::found(const Key& key) const {
  const auto known = entries_.find(key);
  if (known == entries_.end() || known->second.storage.expired()) return nullptr;
  return known->second.memory.lock();
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::as_parameter(
    const at::Tensor& t) const {
  if (!has_plain_bits(t)) return nullptr;
  std::optional<CopiedFrom> from = OpWatch::copied_from(t);
  // A view in another type than the copy's reads other values.
  if (!from || from->type != t.scalar_type() || !is_strided(from->source)) return nullptr;
  const void* const source = storage_of(from->source);
  if (names_->is_buffer(source) || !(names_->is_known(source) || of_leaf(from->source))) {
    return nullptr;
  }
  auto memory = whole(from->source);
  from->source.reset();
  memory->copy = std::move(from);
  return memory;
}

void SavedTensorStore::put(Memory& memory, const Treatment& how, int64_t bytes,
                           const std::string& exact_for) {
  memory.treatment = how;
  live_->add(bytes - memory.bytes);
  memory.bytes = bytes;
  SavedTensor& row = saved_[memory.row];
  row.treatment = how;
  row.stored = bytes;
  row.exact_for = exact_for;
}

void SavedTensorStore::put_codes(Memory& memory, const at::Tensor& t, const Treatment& how,
                                 const CodeRows& apart) {
  RECORD_USER_SCOPE(kCodecScope);
  const SavedTensor& row = saved_[memory.row];
  at::Tensor x = t.detach();
  // Flat, in the order of memory, so that one code serves all views; but means are taken over maps,
  // and what a policy says to run along is of the tensor.
  const at::Tensor flat = x.is_non_overlapping_and_dense() ? x.as_strided({x.numel()}, {1}) : x;
  const Treatment by = by_rows(how, apart);
  if (by != how) {
    x = in_rows(flat, apart);
  } else if (how.first().text("along", "memory") == "memory" &&
             (how.codec()->takes(flat) || !how.codec()->takes(x))) {
    x = flat;
  }
  Encoded encoded;
  try {
    encoded = by.codec()->encode(x, derive(options_.noise, memory.row));
  } catch (const InputError& e) {
    fail("slot `", row.name, "`: ", e.what());
  }
  rounded_ |= how.content() == Content::kRounded;
  // At once, since nothing notifies us when the memory must be free.
  if (encoded.settle) encoded.settle();
  if (t.is_cpu() && how.content() == Content::kRounded && lost_a_value(encoded)) {
    put_whole(memory, t, row.exact_for, row.bytes);
    return;
  }
  const std::lock_guard lock(memory.mutex);
  memory.encoded = std::move(encoded);
  memory.plain.reset();
  memory.may_round = false;
  memory.how = how;
  memory.apart = apart;
  put(memory, by, memory.encoded.bytes(), "");
}

void SavedTensorStore::put_whole(Memory& memory, const at::Tensor& t, const std::string& exact_for,
                                 int64_t bytes) {
  const std::lock_guard lock(memory.mutex);
  memory.encoded = {};
  memory.plain = t.detach();
  memory.version = static_cast<uint32_t>(t._version());
  memory.may_round = false;
  put(memory, Treatment(), bytes, exact_for);
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::hold(const at::Tensor& t, bool strided,
                                                                 bool again) {
  SavedTensor row{.type = t.scalar_type()};
  const SavedTensorNames::Name name = names_->next(t);
  row.name = name.text;
  std::shared_ptr<Memory> memory = strided ? as_parameter(t) : nullptr;
  if (memory || !strided || of_leaf(t) || names_->is_known(storage_of(t))) {
    row.parameter = strided;
    const auto from = memory && tape_ ? names_->parameter(storage_of(memory->plain)) : std::nullopt;
    // The network may write to what it is given: the tape copies it before.
    if (Holding whole; from && from->first.empty()) {
      if (auto taped = on_tape(t, row, whole)) return taped;
    }
    saved_.push_back(std::move(row));
    return memory ? memory : whole(t);
  }
  row.sizes = t.sizes().vec();
  row.bytes = std::min(static_cast<int64_t>(t.numel() * t.element_size()),
                       static_cast<int64_t>(t.storage().nbytes()));
  const RunningOp* const op = OpWatch::current();
  Holding held;
  if (!names_->is_buffer(OpWatch::source_of(storage_of(t)))) {
    held = holding_of(policy_, options_, op, t, row.name, name.inputs, again);
  }
  row.role = held.role;
  if (tape_) {
    if (auto memory = on_tape(t, row, held)) return memory;
  }
  const std::string exact_for = !held.refused ? "" : op ? op->name : "an unknown operation";
  const bool flat = t.is_non_overlapping_and_dense();
  const bool plain_bits = has_plain_bits(t);
  // Dense tensors are shared under any view of the memory.
  const auto key = [&](Content content) {
    return Key{storage_of(t),
               t._version(),
               t.scalar_type(),
               t.storage_offset(),
               flat ? std::vector<int64_t>{t.numel()} : row.sizes,
               flat ? std::vector<int64_t>{} : t.strides().vec(),
               content};
  };
  const auto remember = [&](const std::shared_ptr<Memory>& what) {
    if (!plain_bits) return;
    entries_.insert_or_assign(key(what->treatment.content()),
                              Entry{t.storage().getWeakStorageImpl(), what});
  };
  const auto share = [&](std::shared_ptr<Memory> known) {
    row.shared = true;
    row.treatment = known->treatment;
    saved_.push_back(std::move(row));
    return known;
  };
  const bool beside = held.reads == Reads::kNearBeside && held.how.content() == Content::kRounded;
  const bool shape = held.reads == Reads::kShape;
  const auto apart_in = [&](Memory& known) {
    known.squared |= beside;
    return held.if_squared && !known.squared ? CodeRows() : held.apart;
  };
  const Content content = beside ? Content::kExact : held.how.content();
  if (plain_bits) {
    // A reader that needs less, such as signs, may share an exact copy; never the reverse.
    if (auto known = found(key(Content::kExact))) {
      const CodeRows apart = apart_in(*known);
      if (known->may_round && content == Content::kRounded && held.role == Role::kNone) {
        put_codes(*known, t, held.how, apart);
        entries_.erase(key(Content::kExact));
        remember(known);
      } else {
        known->may_round &= beside || shape;
      }
      return share(std::move(known));
    }
    if (auto known = found(key(Content::kRounded))) {
      // Means over windows are shared only with readers that ask for the same.
      const bool near = known->encoded.windows.size == 0 || known->how == held.how;
      if (shape || (near && (beside || content == Content::kRounded))) {
        const CodeRows apart = apart_in(*known);
        if (!shape && known->encoded.defined() && !known->apart.refine(apart)) {
          if (apart.refine(known->apart)) {
            put_codes(*known, t, Treatment(known->how), apart);
          } else {  // no codes serve both
            put_whole(*known, t, "", row.bytes);
            entries_.erase(key(Content::kRounded));
            remember(known);
          }
        }
        return share(std::move(known));
      }
    }
    if (auto known = found(key(Content::kSigns))) {
      if (shape || content == Content::kSigns) return share(std::move(known));
    }
    if (content == Content::kExact && !beside && !held.how.codec()) {
      // An exact copy serves all readers: it replaces codes of the tensor.
      for (const Content less : {Content::kRounded, Content::kSigns}) {
        if (auto known = found(key(less))) {
          put_whole(*known, t, exact_for, memory ? 0 : row.bytes);
          remember(known);
          memory = std::move(known);
        }
      }
      if (memory) return share(std::move(memory));
    }
  }
  for (const Content other : {Content::kExact, Content::kRounded, Content::kSigns}) {
    // Held twice, in two ways: counted once.
    row.shared |= plain_bits && found(key(other)) != nullptr;
  }
  // Its bytes were counted where it was saved as a result that is recomputed.
  if (const auto known = made_again_.find(storage_of(t)); known != made_again_.end()) {
    row.shared |= !known->second.expired();
  }
  memory = std::make_shared<Memory>();
  memory->live = live_;
  memory->row = saved_.size();
  saved_.push_back(row);
  if (held.how.codec() && !beside) {
    put_codes(*memory, t, held.how, apart_in(*memory));
  } else {
    memory->squared = beside;
    put_whole(*memory, t, beside ? op->name : exact_for, row.bytes);
    memory->may_round = beside;
  }
  remember(memory);
  return memory;
}

}  // namespace compact
