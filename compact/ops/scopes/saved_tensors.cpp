// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_store.h"

namespace compact {

struct SavedTensorScope::State {
  SavedTensorStore store;
  OpWatch watch;

  State(Policy policy, SavedTensorOptions options)
      : store(std::move(policy), std::move(options)), watch(store.tape()) {}
};

namespace {

thread_local std::vector<SavedTensorScope::State*> scopes;  // the innermost last

class Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& t) override { held_ = scopes.back()->store.pack(t); }
  at::Tensor call_unpack_hook() override { return held_.unpack(); }

 private:
  HeldTensor held_;
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

std::map<std::string, int64_t> SavedTensorReport::exact_for() const {
  std::map<std::string, int64_t> bytes;
  for (const SavedTensor& t : tensors) {
    if (!t.exact_for.empty()) bytes[t.exact_for] += t.stored;
  }
  return bytes;
}

SavedTensorScope::SavedTensorScope(Policy policy, SavedTensorOptions options) {
  install_engine();
  state_ = std::make_shared<State>(std::move(policy), std::move(options));
  scopes.push_back(state_.get());
}

SavedTensorScope::~SavedTensorScope() { std::erase(scopes, state_.get()); }

SavedTensorReport SavedTensorScope::report() const { return state_->store.report(); }

int64_t SavedTensorScope::live_bytes() const { return state_->store.live_bytes(); }

}  // namespace compact
