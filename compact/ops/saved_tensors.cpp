// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/saved_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
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
#include "compact/codecs/codec.h"
#include "compact/ops/op_names.h"

namespace compact {
namespace {

constexpr const char* kSigns = "mask:of=sign";

// What can be read from what is held.
enum class Content : uint8_t { kExact, kRounded, kSigns };
Content content_of(const std::string& treatment) {
  if (treatment == "keep") return Content::kExact;
  const Spec first = Spec::parse_chain(treatment)[0];
  if (first.name == "mask" && first.text("of", "") == "sign") return Content::kSigns;
  return find_codec(first.name)->lossless ? Content::kExact : Content::kRounded;
}

// What is held of one piece of memory, by all who saved it.
struct Held {
  std::string treatment;
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
  std::map<const void*, std::string> parameters;  // storage -> name
  std::vector<SavedTensor> saved;
  std::map<Key, Entry> entries;
  std::map<std::string, CodecPtr> codecs;
  std::shared_ptr<std::atomic<int64_t>> live = std::make_shared<std::atomic<int64_t>>(0);
  OpWatch watch;
  // Of identities: the last parameter that an operation read, operations without any since.
  std::string nearest;
  int64_t since = 0;
  uint64_t last_op = 0;
  std::map<std::string, int64_t> repeated;

  CodecPtr codec(const std::string& text) {
    CodecPtr& found = codecs[text];
    if (!found) found = make_codec(text);
    return found;
  }
  std::string name_of(const at::Tensor& t, bool& result);
  static int64_t index_limit(const at::Tensor& t, bool result);
  std::string treatment_of(const at::Tensor& t, const std::string& name, bool result);
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

// NEAREST.OP.ROLE, or NEAREST~K.OP.ROLE for the K-th operation behind it that reads no parameter.
std::string SavedTensorScope::State::name_of(const at::Tensor& t, bool& result) {
  const RunningOp* op = OpWatch::current();
  result = true;
  if (!op) return cat(nearest, "~", ++since, ".tensor");
  std::string role = "result";
  const void* const storage = storage_of(t);
  const std::string* parameter = nullptr;
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    const auto found = parameters.find(op->inputs[i]);
    if (found != parameters.end() && !parameter) parameter = &found->second;
    if (op->inputs[i] == storage && storage) {
      result = false;
      role = i == 0 ? "input" : cat("input", i);
    }
  }
  if (parameter) {
    const size_t dot = parameter->rfind('.');
    nearest = dot == std::string::npos ? *parameter : parameter->substr(0, dot);
    since = 0;
  } else if (last_op != op->serial) {
    ++since;
  }
  last_op = op->serial;
  std::string name = since ? cat(nearest, "~", since) : nearest;
  name += "." + op->name + "." + role;
  const int64_t before = repeated[name]++;
  return before ? cat(name, "@", before + 1) : name;
}

// What the operation promises integers to be below; 0: nothing.
int64_t SavedTensorScope::State::index_limit(const at::Tensor& t, bool result) {
  const RunningOp* const op = OpWatch::current();
  if (!op || op->sizes.empty() || t.scalar_type() != at::kLong) return 0;
  const auto is = [&](const char* name) { return op->name.starts_with(name); };
  // Positions in the input's map.
  if (result && is("max_pool2d") && op->sizes.size() >= 2) {
    return op->sizes[op->sizes.size() - 2] * op->sizes.back();
  }
  // Rows, or places along another dimension of the first argument; none may be negative.
  if (!result && (is("index_select") || is("index_add") || is("gather") || is("embedding"))) {
    return *std::ranges::max_element(op->sizes);
  }
  return 0;
}

std::string SavedTensorScope::State::treatment_of(const at::Tensor& t, const std::string& name,
                                                  bool result) {
  const bool is_float = t.is_floating_point() && t.scalar_type() != at::kDouble;
  const auto stored = static_cast<int64_t>(t.storage().nbytes());
  const bool spread = t.numel() * t.element_size() > stored;  // a view that repeats its elements
  if (t.numel() < options.least_elements || t.is_conj() || t.is_neg() || spread) return "keep";
  const RunningOp* const op = OpWatch::current();
  const auto op_has = [&](const char* part) {
    return op && op->name.find(part) != std::string::npos;
  };
  // Statistics of norms and softmaxes: little memory, and not linear in the gradient.
  const bool statistic = result && (op_has("norm") || op_has("log_softmax") ||
                                    (op_has("scaled_dot_product") && t.dim() < 4));
  if (statistic) return "keep";
  // Its backward pass asks for nothing but which side of 0 its input is on.
  if (options.lossless && is_float && !result && op && op->name.starts_with("leaky_relu")) {
    return kSigns;
  }
  const bool relu = is_float && op && ((op->name == "relu" && result) || op->name == "relu_");
  std::vector<Spec> chain = Spec::parse_chain(policy.slot_text(name));
  const auto with_rest = [&](const Spec& first) {
    std::vector<Spec> all = chain;
    all[0] = first;
    return Spec::chain_str(all);
  };
  if (const int64_t limit = index_limit(t, result); options.lossless && limit > 0) {
    return with_rest(Spec::parse(cat("index:limit=", limit)));
  }
  if (options.lossless && !relu) {
    for (const char* lossless : {"mask", "index"}) {
      if (codec(lossless)->takes(t)) return with_rest(Spec::parse(lossless));
    }
  }
  Spec& how = chain[0];
  if (relu && how.name == "quantize") {
    // Its backward pass asks where the result is above 0, of which rounded values would not tell;
    // the next operation asks for the values.
    if (how.integer("bits", 4) == 1) return with_rest(Spec::parse(kSigns));
    how.set("levels", "positive");
    return Spec::chain_str(chain);
  }
  if (!is_float || how.name == "keep") return "keep";
  COMPACT_CHECK(find_codec(how.name), "slot `", name, "` = ", how.str(),
                ": tensors that autograd saves can be kept or encoded; this is for the slots of "
                "segments");
  return Spec::chain_str(chain);
}

std::shared_ptr<Held> SavedTensorScope::State::hold(const at::Tensor& t, bool strided) {
  SavedTensor row{.type = t.scalar_type()};
  bool result = false;
  row.name = name_of(t, result);
  auto held = std::make_shared<Held>();
  held->live = live;
  const auto keep = [&] {
    held->plain = t.detach();
    held->version = t._version();
  };
  if (!strided || of_leaf(t) || parameters.contains(storage_of(t))) {
    row.treatment = strided ? "parameter" : "keep";
    keep();
    saved.push_back(std::move(row));
    return held;
  }
  row.sizes = t.sizes().vec();
  row.bytes = std::min(static_cast<int64_t>(t.numel() * t.element_size()),
                       static_cast<int64_t>(t.storage().nbytes()));
  row.treatment = treatment_of(t, row.name, result);
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
  const Content content = content_of(row.treatment);
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
  if (row.treatment == "keep") {
    keep();
    held->bytes = row.bytes;
  } else {
    const at::Tensor x = flat ? t.detach().as_strided({t.numel()}, {1}) : t.detach();
    held->encoded = codec(row.treatment)->encode(x, derive(options.noise, saved.size()));
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
    if (!t.shared && t.treatment != "parameter") sum += t.bytes;
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
  state_ = std::make_shared<State>();
  state_->policy = std::move(policy);
  state_->options = std::move(options);
  for (const auto& [name, tensor] : state_->options.parameters) {
    state_->parameters.emplace(storage_of(tensor), name);
  }
  scopes.push_back(state_.get());
}

SavedTensorScope::~SavedTensorScope() { std::erase(scopes, state_.get()); }

SavedTensorReport SavedTensorScope::report() const { return {state_->saved}; }

int64_t SavedTensorScope::live_bytes() const { return *state_->live; }

}  // namespace compact
