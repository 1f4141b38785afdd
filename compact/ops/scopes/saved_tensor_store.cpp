// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensor_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <set>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_names_impl.h"
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

namespace compact {

struct HeldTensor::Memory {
  Treatment treatment;
  Encoded encoded;   // or, where nothing encodes it,
  at::Tensor plain;  // the tensor, without its history
  uint32_t version = 0;
  std::optional<CopiedFrom> copy;  // what was saved, where that is a copy of `plain`
  int64_t bytes = 0;
  std::shared_ptr<std::atomic<int64_t>> live;
  ~Memory() {
    if (live) *live -= bytes;
  }
};

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

at::Tensor HeldTensor::unpack() const {
  const at::NoGradGuard no_grad;
  if (memory_->encoded.defined()) {
    const at::Tensor x = memory_->encoded.restore();
    return flat_ ? x.as_strided(sizes_, strides_) : x;
  }
  at::Tensor x = memory_->plain;
  TORCH_CHECK(x._version() == memory_->version,
              "[saved tensors] one of the tensors needed for gradients was changed in place: ",
              x.sizes(), " is at version ", x._version(), ", expected ", memory_->version);
  if (memory_->copy) {
    const CopiedFrom& copy = *memory_->copy;
    x = at::empty_strided(copy.sizes, copy.strides, x.options().dtype(copy.type)).copy_(x);
  }
  // Another view of the same memory may have been saved first.
  const bool same = !strided_ || (x.sizes() == sizes_ && x.strides() == strides_);
  return same ? x : x.as_strided(sizes_, strides_, offset_);
}

SavedTensorStore::SavedTensorStore(Policy policy, SavedTensorOptions options)
    : policy_(std::move(policy)),
      options_(std::move(options)),
      names_(std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers)),
      live_(std::make_shared<std::atomic<int64_t>>(0)) {}

SavedTensorStore::~SavedTensorStore() = default;

void SavedTensorStore::begin(Named parameters, Named buffers, uint64_t noise) {
  const std::lock_guard lock(mutex_);
  options_.parameters = std::move(parameters);
  options_.buffers = std::move(buffers);
  options_.noise = noise;
  names_ = std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers);
  saved_.clear();
  entries_.clear();
}

void SavedTensorStore::forget() {
  const std::lock_guard lock(mutex_);
  options_.parameters.clear();
  options_.buffers.clear();
  names_ = std::make_unique<SavedTensorNames>(options_.parameters, options_.buffers);
  entries_.clear();
}

SavedTensorReport SavedTensorStore::report() const {
  const std::lock_guard lock(mutex_);
  return {saved_};
}

HeldTensor SavedTensorStore::pack(const at::Tensor& t) {
  const at::NoGradGuard no_grad;
  HeldTensor held;
  held.strided_ = is_strided(t);
  if (held.strided_) {
    held.sizes_ = t.sizes().vec();
    held.strides_ = t.strides().vec();
    held.offset_ = t.storage_offset();
    held.flat_ = t.is_non_overlapping_and_dense();
  }
  const std::lock_guard lock(mutex_);
  held.memory_ = hold(t, held.strided_);
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

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::hold(const at::Tensor& t,
                                                                 bool strided) {
  SavedTensor row{.type = t.scalar_type()};
  const SavedTensorNames::Name name = names_->next(t);
  row.name = name.text;
  std::shared_ptr<Memory> memory = strided ? as_parameter(t) : nullptr;
  if (memory || !strided || of_leaf(t) || names_->is_known(storage_of(t))) {
    row.parameter = strided;
    saved_.push_back(std::move(row));
    return memory ? memory : whole(t);
  }
  row.sizes = t.sizes().vec();
  row.bytes = std::min(static_cast<int64_t>(t.numel() * t.element_size()),
                       static_cast<int64_t>(t.storage().nbytes()));
  if (!names_->is_buffer(OpWatch::source_of(storage_of(t)))) {
    row.treatment = treatment_of(policy_, options_, OpWatch::current(), t, row.name, name.result);
  }
  const bool flat = t.is_non_overlapping_and_dense();
  const bool plain_bits = has_plain_bits(t);
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
  const Content content = row.treatment.content();
  if (plain_bits) {
    // Whoever can do with less may read the exact tensor where it is held; nobody gets less.
    for (const Content have : {content, Content::kExact}) {
      if (auto known = found(key(have))) {
        row.shared = true;
        row.treatment = known->treatment;
        saved_.push_back(std::move(row));
        return known;
      }
    }
  }
  for (const Content other : {Content::kExact, Content::kRounded, Content::kSigns}) {
    // Held twice, in two ways: counted once.
    row.shared |= plain_bits && found(key(other)) != nullptr;
  }
  if (!row.treatment.codec()) {
    memory = whole(t);
    memory->bytes = row.bytes;
  } else {
    memory = std::make_shared<Memory>();
    RECORD_USER_SCOPE(kCodecScope);
    const at::Tensor x = flat ? t.detach().as_strided({t.numel()}, {1}) : t.detach();
    try {
      memory->encoded = row.treatment.codec()->encode(x, derive(options_.noise, saved_.size()));
    } catch (const InputError& e) {
      fail("slot `", row.name, "`: ", e.what());
    }
    // Nobody tells when its memory must be free.
    if (memory->encoded.settle) memory->encoded.settle();
    memory->bytes = memory->encoded.bytes();
  }
  memory->treatment = row.treatment;
  memory->live = live_;
  *live_ += memory->bytes;
  row.stored = memory->bytes;
  if (plain_bits) {
    entries_.insert_or_assign(key(content), Entry{t.storage().getWeakStorageImpl(), memory});
  }
  saved_.push_back(std::move(row));
  return memory;
}

}  // namespace compact
