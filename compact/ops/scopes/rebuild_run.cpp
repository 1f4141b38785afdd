// SPDX-License-Identifier: Apache-2.0
// Rebuild's second half: operations run again.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "compact/ops/scopes/rebuild_impl.h"
#include "compact/ops/scopes/unseen_impl.h"

namespace compact {
namespace {

// Sets the number of threads that a call had.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()), other_(count != before_) {
    if (other_) at::set_num_threads(count);
  }
  ~Threads() {
    if (other_) at::set_num_threads(before_);
  }
  Threads(const Threads&) = delete;

 private:
  int before_;
  bool other_;
};

// Sets whether oneDNN is used as it was for a call.
class Mkldnn {
 public:
  explicit Mkldnn(bool use) : before_(at::globalContext().userEnabledMkldnn()) {
    if (use != before_) at::globalContext().setUserEnabledMkldnn(use);
  }
  ~Mkldnn() {
    if (at::globalContext().userEnabledMkldnn() != before_) {
      at::globalContext().setUserEnabledMkldnn(before_);
    }
  }
  Mkldnn(const Mkldnn&) = delete;

 private:
  bool before_;
};

std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      all.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) all.push_back(t);
    }
  }
  return all;
}

void put(torch::jit::Stack& stack, const Record::Input& input, const at::Tensor& t) {
  c10::IValue& argument = stack[input.argument];
  if (input.element < 0) {
    argument = t;
  } else if (argument.isTensorList()) {
    argument.toTensorList().set(static_cast<size_t>(input.element), t);
  } else {
    argument.toOptionalTensorList().set(static_cast<size_t>(input.element), t);
  }
}

}  // namespace

void Rebuild::check(const TapeNode& n) const {
  const auto whose = [&] {
    return n.name.empty() ? c10::str("a tensor of sizes ", at::IntArrayRef(n.geometry.sizes))
                          : "`" + n.name + "`";
  };
  TORCH_CHECK(n.own ? n.memory->counter.current_version() == 0 : n.is_unwritten(),
              "[saved tensors] ", whose(),
              ", which saved tensors are rebuilt from, was changed in place before the backward "
              "pass, or in it");
  TORCH_CHECK(n.own || static_cast<int64_t>(n.memory->storage.nbytes()) == n.bytes,
              "[saved tensors] ", whose(),
              ", which saved tensors are rebuilt from, was resized before the backward pass: it "
              "has ",
              n.memory->storage.nbytes(), " bytes, expected ", n.bytes);
}

c10::Storage Rebuild::memory_of(TapeNode& n, Local& local) {
  if (n.codes.defined()) {
    const c10::Storage decoded = n.codes.restore().storage();
    if (n.count > 1) local[&n] = decoded;
    return decoded;
  }
  check(n);
  return n.memory->storage;
}

c10::Storage Rebuild::made(TapeNode& n, const TapeNode& target, Local& local) {
  if (const auto known = local.find(&n); known != local.end()) return known->second;
  if (n.mode != TapeNode::Mode::kRecipe) return memory_of(n, local);
  return run(n, target, local);
}

c10::Storage Rebuild::run(TapeNode& n, const TapeNode& target, Local& local) {
  const std::shared_ptr<const Record> record = n.record;
  torch::jit::Stack stack = record->arguments;
  for (c10::IValue& argument : stack) {
    if (argument.isTensorList()) argument = argument.toTensorList().copy();
    if (argument.isOptionalTensorList()) argument = argument.toOptionalTensorList().copy();
  }
  std::vector<std::pair<const TapeNode*, c10::Storage>> read;  // one each, where views alias
  std::vector<at::Tensor> views;
  for (const Record::Input& input : record->inputs) {
    TapeNode& from = *input.node;
    auto at = std::ranges::find(read, &from, &std::pair<const TapeNode*, c10::Storage>::first);
    if (at == read.end()) {
      c10::Storage storage = made(from, target, local);
      const bool written = std::ranges::any_of(record->inputs, [&](const Record::Input& other) {
        return other.written && other.node == input.node;
      });
      // A tensor without other readers may be overwritten.
      const bool made = from.mode == TapeNode::Mode::kRecipe || from.codes.defined();
      const bool ours = made && from.count == 1;
      if (written && !ours) {
        const auto bytes = static_cast<int64_t>(storage.nbytes());
        storage = view_of(storage, Geometry::flat(at::kByte, bytes)).clone().storage();
      }
      at = read.emplace(read.end(), &from, std::move(storage));
    }
    views.push_back(view_of(at->second, input.geometry));
    put(stack, input, views.back());
  }
  TORCH_CHECK(!record->heavy || record->precision == precision_settings(), "[saved tensors] ",
              record->op.schema().name(),
              " is run again for the backward pass, and settings of its precision or algorithms "
              "(float32_matmul_precision, allow_tf32, cudnn.benchmark, ...) have changed since");
  {
    const Threads threads(record->threads);
    const Mkldnn mkldnn(record->mkldnn);
    const at::AutoGradMode grad_mode(record->grad_mode);
    record->op.callBoxed(&stack);
  }
  const std::vector<at::Tensor> results = tensors_of(stack);
  c10::Storage result;
  for (const auto& weak : record->outputs) {
    const TapeNodePtr m = weak.lock();
    if (!m || m->record != record) continue;  // it is no longer known to be
    const at::Tensor& t = m->output >= 0 ? results.at(static_cast<size_t>(m->output))
                                         : views.at(static_cast<size_t>(-1 - m->output));
    const c10::Storage& storage = t.storage();
    TORCH_CHECK(m->geometry.same_layout(t) && static_cast<int64_t>(storage.nbytes()) == m->bytes,
                "[saved tensors] ", record->op.schema().name(),
                " gave a tensor of another layout when it was run again");
    if (m.get() == &n) result = storage;
    // Readers that are near keep it, as if it had been held. Under a budget not where the graph is
    // retained, which would hold it for good, nor beyond the bytes that may live.
    const int readers = m.get() == &target ? 1 : 0;
    // Nor inside the forward pass, where codecs may round it later, once its recipe is gone.
    const bool stays =
        (options_.rounds && !closed_) ||
        (options_.budgeted && (torch::autograd::get_current_graph_task_keep_graph() ||
                               live_->bytes() - freeing_ + m->bytes > most_live_));
    if (m->mode != TapeNode::Mode::kRecipe) continue;
    if (m->handles > readers && !stays && target.call - m->call < options_.near) {
      m->mode = TapeNode::Mode::kHeld;
      m->memory = own(storage);
      m->own = true;
      m->partial = false;
      m->held_bytes = m->bytes;
      release_inputs(*m);
    } else if (m->count > 1) {
      local[m.get()] = storage;
    }
  }
  return result;
}

c10::Storage Rebuild::materialize(TapeNode& n) {
  const Unseen unseen;
  Local local;
  return made(n, n, local);
}

}  // namespace compact
