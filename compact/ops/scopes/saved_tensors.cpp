// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_names_impl.h"
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

namespace compact {
namespace {

// What is held of one piece of memory, by all who saved it.
struct Held {
  Treatment treatment;
  Encoded encoded;   // or, where nothing encodes it,
  at::Tensor plain;  // the tensor, without its history
  uint32_t version = 0;
  int64_t bytes = 0;
  std::shared_ptr<std::atomic<int64_t>> live;
  ~Held() { *live -= bytes; }
};

// Which memory, at which of its versions, read how; what is held of it.
using Key = std::tuple<const void*, uint32_t, at::ScalarType, int64_t, std::vector<int64_t>,
                       std::vector<int64_t>, Content>;
struct Entry {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being reused
  std::weak_ptr<Held> held;
};

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

}  // namespace

struct SavedTensorScope::State {
  Policy policy;
  SavedTensorOptions options;
  SavedTensorNames names;
  std::vector<SavedTensor> saved;
  std::map<Key, Entry> entries;
  std::shared_ptr<std::atomic<int64_t>> live = std::make_shared<std::atomic<int64_t>>(0);
  OpWatch watch;

  State(Policy p, SavedTensorOptions o)
      : policy(std::move(p)), options(std::move(o)), names(options.parameters) {}
  std::shared_ptr<Held> hold(const at::Tensor& t, bool strided);
};

namespace {

thread_local std::vector<SavedTensorScope::State*> scopes;  // the innermost last

class Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& t) override {
    const at::NoGradGuard no_grad;
    strided_ = t.layout() == at::kStrided && t.has_storage();
    if (strided_) {
      sizes_ = t.sizes().vec();
      strides_ = t.strides().vec();
      offset_ = t.storage_offset();
      flat_ = t.is_non_overlapping_and_dense();
    }
    held_ = scopes.back()->hold(t, strided_);
  }
  at::Tensor call_unpack_hook() override {
    const at::NoGradGuard no_grad;
    if (held_->encoded.defined()) {
      const at::Tensor x = held_->encoded.restore();
      return flat_ ? x.as_strided(sizes_, strides_) : x;
    }
    const at::Tensor& x = held_->plain;
    TORCH_CHECK(x._version() == held_->version,
                "[saved tensors] one of the tensors needed for gradients was changed in place: ",
                x.sizes(), " is at version ", x._version(), ", expected ", held_->version);
    // Another view of the same memory may have been saved first.
    const bool same = !strided_ || (x.sizes() == sizes_ && x.strides() == strides_);
    return same ? x : x.as_strided(sizes_, strides_, offset_);
  }

 private:
  std::shared_ptr<Held> held_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  bool strided_ = false, flat_ = false;
};

// The engine of a process without Python, asked for hooks whenever a tensor is saved.
class ScopeEngine final : public torch::autograd::Engine {
 public:
  ~ScopeEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return scopes.empty() ? nullptr : std::make_unique<Hooks>();
  }
  static torch::autograd::Engine& get() {
    static auto* const engine = new ScopeEngine;  // outlives every thread
    return *engine;
  }
};

void install_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (&torch::autograd::Engine::get_default_engine() !=
        &torch::autograd::Engine::get_base_engine()) {
      throw std::logic_error(
          "[saved tensors] this process has an autograd engine of its own, as Python has; use "
          "torch.autograd.graph.saved_tensors_hooks there");
    }
    torch::autograd::set_default_engine_stub(ScopeEngine::get);
  });
}

}  // namespace

std::shared_ptr<Held> SavedTensorScope::State::hold(const at::Tensor& t, bool strided) {
  SavedTensor row{.type = t.scalar_type()};
  const SavedTensorNames::Name name = names.next(t);
  row.name = name.text;
  auto held = std::make_shared<Held>();
  held->live = live;
  const auto keep = [&] {
    held->plain = t.detach();
    held->version = t._version();
  };
  if (!strided || of_leaf(t) || names.is_parameter(t)) {
    row.parameter = strided;
    keep();
    saved.push_back(std::move(row));
    return held;
  }
  row.sizes = t.sizes().vec();
  row.bytes = std::min(static_cast<int64_t>(t.numel() * t.element_size()),
                       static_cast<int64_t>(t.storage().nbytes()));
  row.treatment = treatment_of(policy, options, OpWatch::current(), t, row.name, name.result);
  const bool flat = t.is_non_overlapping_and_dense();
  const bool plain_bits = !t.is_conj() && !t.is_neg();
  // Dense tensors are shared whatever their view of the memory is.
  const auto key = [&](Content content) {
    return Key{storage_of(t),
               t._version(),
               t.scalar_type(),
               t.storage_offset(),
               flat ? std::vector<int64_t>{t.numel()} : row.sizes,
               flat ? std::vector<int64_t>{} : t.strides().vec(),
               content};
  };
  const auto find = [&](Content content) -> std::shared_ptr<Held> {
    const auto found = entries.find(key(content));
    if (found == entries.end() || found->second.storage.expired()) return nullptr;
    return found->second.held.lock();
  };
  const Content content = row.treatment.content();
  if (plain_bits) {
    // Whoever can do with less may read the exact tensor where it is held; nobody gets less.
    for (const Content have : {content, Content::kExact}) {
      if (auto known = find(have)) {
        row.shared = true;
        row.treatment = known->treatment;
        saved.push_back(std::move(row));
        return known;
      }
    }
  }
  for (const Content other : {Content::kExact, Content::kRounded, Content::kSigns}) {
    row.shared |= plain_bits && find(other) != nullptr;  // held twice, in two ways: counted once
  }
  held->treatment = row.treatment;
  if (!row.treatment.codec()) {
    keep();
    held->bytes = row.bytes;
  } else {
    RECORD_USER_SCOPE(kCodecScope);
    const at::Tensor x = flat ? t.detach().as_strided({t.numel()}, {1}) : t.detach();
    held->encoded = row.treatment.codec()->encode(x, derive(options.noise, saved.size()));
    // Nobody tells when its memory must be free.
    if (held->encoded.settle) held->encoded.settle();
    held->bytes = held->encoded.bytes();
  }
  *live += held->bytes;
  row.stored = held->bytes;
  if (plain_bits) {
    entries.insert_or_assign(key(content), Entry{t.storage().getWeakStorageImpl(), held});
  }
  saved.push_back(std::move(row));
  return held;
}

int64_t SavedTensorReport::bytes() const {
  int64_t sum = 0;
  for (const SavedTensor& t : tensors) {
    if (!t.shared && !t.parameter) sum += t.bytes;
  }
  return sum;
}

int64_t SavedTensorReport::stored() const {
  int64_t sum = 0;
  for (const SavedTensor& t : tensors) sum += t.stored;
  return sum;
}

SavedTensorScope::SavedTensorScope(Policy policy, SavedTensorOptions options) {
  install_engine();
  state_ = std::make_shared<State>(std::move(policy), std::move(options));
  scopes.push_back(state_.get());
}

SavedTensorScope::~SavedTensorScope() { std::erase(scopes, state_.get()); }

SavedTensorReport SavedTensorScope::report() const { return {state_->saved}; }

int64_t SavedTensorScope::live_bytes() const { return *state_->live; }

}  // namespace compact
