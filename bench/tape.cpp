// SPDX-License-Identifier: Apache-2.0
// bench_tape [--seconds S] [--filter TEXT]: what a scope that rebuilds (preset exact) adds to an
// operation and to a tensor that autograd saves, beside hooks of PyTorch that do nothing. Chains of
// 100 operations on 2,048 elements, on one thread: of which nothing is saved; then with gradients.
// The cost of the scope by itself is subtracted. Ways take turns; each time is the least of many
// chains.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "bench/timing.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace {

using torch::autograd::Engine;

constexpr int kOperations = 100;
constexpr double kMostOfOperation = 1000, kMostOfSaved = 3000;  // nanoseconds that are aimed at

// Plain; empty hooks; a scope that keeps what is saved as it is; one that rebuilds.
enum Way : size_t { kPlain, kEmpty, kIdle, kTape };
constexpr Way kWays[] = {kPlain, kEmpty, kIdle, kTape};
Way way = kPlain;
int64_t saved = 0;
Engine* scopes = nullptr;  // asks scopes for hooks

struct EmptyHooks final : torch::autograd::SavedVariableHooks {
  // Detached: a node that held its own output would never be freed.
  void call_pack_hook(const at::Tensor& t) override { held = t.detach(), ++saved; }
  at::Tensor call_unpack_hook() override { return held; }
  at::Tensor held;
};

struct BenchEngine final : Engine {
  ~BenchEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (way == kEmpty) return std::make_unique<EmptyHooks>();
    return way == kPlain ? nullptr : scopes->get_default_saved_variable_hooks();
  }
  static Engine& get() {
    static auto* const engine = new BenchEngine;  // outlives every thread
    return *engine;
  }
};

struct Operation {
  const char* name;
  at::Tensor (*run)(const at::Tensor& x, const at::Tensor& w);
};
constexpr Operation kNone = {"", nullptr};
constexpr Operation kAll[] = {
    {"mul", [](const at::Tensor& x, const at::Tensor& w) { return at::mul(x, w); }},
    {"silu", [](const at::Tensor& x, const at::Tensor&) { return at::silu(x); }},
    {"layer_norm", [](const at::Tensor& x, const at::Tensor&) { return at::layer_norm(x, {64}); }},
    {"view",
     [](const at::Tensor& x, const at::Tensor&) {
       return x.view({32, 64});
     }},
};

struct Nanoseconds {  // of an operation
  double forward = 1e18, backward = 1e18;
};
using Times = std::array<Nanoseconds, std::size(kWays)>;

class Chain {
 public:
  explicit Chain(const Operation& op) : op_(op) {}

  Nanoseconds run(bool gradients) {
    static const compact::Policy kOff = compact::Policy::preset("off"),
                                 kExact = compact::Policy::preset("exact");
    const at::AutoGradMode mode(gradients);
    const double start = clock_seconds(true);
    std::optional<compact::SavedTensorScope> scope;
    if (way == kIdle || way == kTape) scope.emplace(way == kTape ? kExact : kOff);
    at::Tensor y = x_;
    for (int i = 0; op_.run && i < kOperations; ++i) y = op_.run(y, w_);
    if (counts) {
      rebuilt = std::ranges::count_if(scope->report().tensors, [](const compact::SavedTensor& t) {
        return t.treatment.text() == "recompute";
      });
    }
    scope.reset();
    const double middle = clock_seconds(true);
    if (gradients) torch::autograd::backward({y}, {g_});
    y.reset();
    const double end = clock_seconds(true);
    constexpr double kOne = 1e9 / kOperations;
    return {(middle - start) * kOne, (end - middle) * kOne};
  }

  Times least(bool gradients, const Settings& settings) {
    Times best;
    for (double spent = 0; spent < std::size(kWays) * settings.seconds * 1e9;) {
      for (const Way w : kWays) {
        way = w;
        const Nanoseconds t = run(gradients);
        best[w].forward = std::min(best[w].forward, t.forward);
        best[w].backward = std::min(best[w].backward, t.backward);
        spent += (t.forward + t.backward) * kOperations;
      }
    }
    way = kPlain;
    return best;
  }

  bool counts = false;
  int64_t rebuilt = 0;

 private:
  Operation op_;
  at::Tensor x_ = at::randn({32, 64}).requires_grad_(), w_ = at::ones({32, 64}).requires_grad_(),
             g_ = at::ones({32, 64});
};

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  at::set_num_threads(1);
  {
    const compact::SavedTensorScope first{compact::Policy()};  // installs its engine
    scopes = &Engine::get_default_engine();
  }
  torch::autograd::set_default_engine_stub(BenchEngine::get);
  const Times alone = Chain(kNone).least(false, *settings);
  std::vector<Operation> operations;
  for (const Operation& op : kAll) {
    if (std::string(op.name).find(settings->filter) != std::string::npos) operations.push_back(op);
  }

  std::printf("ns of an operation that saves nothing\n%-12s %8s %8s %8s | %8s %8s\n", "", "plain",
              "idle", "tape", "added", "ratio");
  double most = 0;
  std::vector<Times> unsaved;
  for (const Operation& op : operations) {
    Times t = Chain(op).least(false, *settings);
    for (const Way w : kWays) t[w].forward -= alone[w].forward;
    const double plain = t[kPlain].forward, tape = t[kTape].forward;
    most = std::max(most, tape - plain);
    std::printf("%-12s %8.0f %8.0f %8.0f | %8.0f %7.2fx\n", op.name, plain, t[kIdle].forward, tape,
                tape - plain, tape / plain);
    unsaved.push_back(t);
  }
  std::printf("most added: %.0f; aim: %.0f; a scope by itself: %.0f\n\n", most, kMostOfOperation,
              (alone[kTape].forward - alone[kPlain].forward) * kOperations);

  std::printf(
      "ns of an operation with gradients, both passes; what is added to one tensor that it saves, "
      "without what is added above\n%-12s %6s %8s %8s %8s %8s %8s | %13s %13s %8s %8s\n",
      "", "saves", "plain", "empty", "idle", "tape", "ratio", "empty hooks", "tape", "of it run",
      "beside");
  std::printf("%-12s %6s %8s %8s %8s %8s %8s | %6s %6s %6s %6s %8s %8s\n", "", "", "", "", "", "",
              "", "pack", "unpack", "pack", "unpack", "again", "empty");
  most = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    Chain chain(operations[i]);
    way = kTape, chain.counts = true;
    chain.run(true);
    way = kEmpty, chain.counts = false, saved = 0;
    chain.run(true);
    const auto count = static_cast<double>(saved);
    Times t = chain.least(true, *settings);
    for (const Way w : kWays) t[w].forward -= alone[w].forward;
    const auto both = [&](Way w) { return t[w].forward + t[w].backward; };
    std::printf("%-12s %6.0f %8.0f %8.0f %8.0f %8.0f %7.2fx", operations[i].name,
                count / kOperations, both(kPlain), both(kEmpty), both(kIdle), both(kTape),
                both(kTape) / both(kPlain));
    if (count > 0) {
      const auto pack = [&](Way w) {
        const Times& u = unsaved[i];
        const double operation = w == kTape ? u[w].forward - u[kPlain].forward : 0;
        return (t[w].forward - t[kPlain].forward - operation) * kOperations / count;
      };
      const auto unpack = [&](Way w) {
        return (t[w].backward - t[kPlain].backward) * kOperations / count;
      };
      const double again = unsaved[i][kPlain].forward * static_cast<double>(chain.rebuilt) / count;
      const double beside = pack(kTape) + unpack(kTape) - pack(kEmpty) - unpack(kEmpty);
      most = std::max(most, beside - again);
      std::printf(" | %6.0f %6.0f %6.0f %6.0f %8.0f %8.0f", pack(kEmpty), unpack(kEmpty),
                  pack(kTape), unpack(kTape), again, beside);
    }
    std::printf("\n");
  }
  std::printf("most added beside empty hooks, without what is run again: %.0f; aim: %.0f\n", most,
              kMostOfSaved);
}
