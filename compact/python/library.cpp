// SPDX-License-Identifier: Apache-2.0
// The library as the Python package sees it: torch.classes.compact and torch.ops.compact.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/functions/softmax_rows.h"
#include "compact/ops/policy/policy.h"
#include "compact/plan/gpu_card.h"
#include "compact/python/block.h"
#include "compact/python/meter.h"
#include "compact/python/policy_search.h"
#include "compact/python/shape.h"
#include "compact/python/step_trace.h"

namespace compact {
namespace {

// Presets that the package can do something with, in layers or in networks as a whole. Gradients as
// in compact-paper are for the C++ program.
std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedPreset& preset : embedded_presets()) names.push_back(preset.name);
  std::erase(names, "compact-paper");
  return names;
}

Policy read_policy(const std::string& given) {
  const std::vector<std::string> presets = names_of(embedded_presets());
  if (std::ranges::find(presets, given) != presets.end()) return Policy::preset(given);
  const bool lines = given.find('\n') != given.npos;
  if (!lines && is_file(given)) return Policy::from_file(given);
  if (lines || given.find('=') != given.npos) {
    Policy policy = Policy::parse(given, "policy");
    policy.make_copies_general();
    return policy;
  }
  const bool path = given.find('/') != given.npos || given.ends_with(".policy");
  if (!path) fail("no preset `", given, "`", suggestion(given, preset_names()));
  return Policy::from_file(given);
}

// A policy by a preset's name, the path of a file, or its lines.
Policy policy_of(const std::string& given) {
  Policy policy = read_policy(given);
  COMPACT_CHECK(!policy.has(PolicyKind::kWeight),
                "lines of a policy that begin with `weight` are for the program");
  return policy;
}

std::string policy_text(const std::string& given) { return policy_of(given).str(); }

// How a policy has moments held; empty: it does not say.
std::string moments_of(const std::string& policy) { return policy_of(policy).moment(""); }

// 0: it is no number of bytes.
int64_t bytes_of_text(const std::string& text) { return parse_bytes(text).value_or(0); }

// A policy's budget for saved tensors: bytes, or a part of all saved bytes; 0: it has no such
// budget.
std::tuple<int64_t, double> slot_budget(const std::string& policy) {
  const ByteBudget budget =
      budget_of(Policy::parse(policy, "policy").slot("", Role::kHeavy).first());
  return {budget.bytes, budget.part};
}

// How the text of a policy treats the slots of a role.
std::string slot_treatment(const std::string& policy, const std::string& role) {
  return Policy::parse(policy, "policy").slot("", parse_roles(role).front()).text();
}

bool keeps_all(const std::string& policy) { return Policy::parse(policy, "policy").keeps_all(); }

// Throws InputError where a slot pattern of `given` is for none of these slots, or has only such
// in tiles as cannot be, a gradient's for none of these products (none given: gradients are not
// looked at).
void check_patterns(const std::string& given, const std::vector<std::string>& names,
                    const std::vector<std::string>& role_names, const c10::List<bool>& in_tiles,
                    const std::vector<std::string>& products) {
  COMPACT_CHECK(names.size() == role_names.size() && names.size() == in_tiles.size(),
                "[policy] a role for each slot is needed, and whether it is in tiles");
  std::vector<NamedRole> all;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& role = role_names[i];
    all.push_back(
        {names[i], role.empty() ? Role::kNone : parse_roles(role).front(), in_tiles.get(i)});
  }
  const Policy policy = policy_of(given);
  policy.check_patterns(PolicyKind::kSlot, all);
  std::vector<NamedRole> gradients;
  for (const std::string& product : products) gradients.push_back({product, Role::kNone});
  if (!products.empty() && policy.has(PolicyKind::kGrad))
    policy.check_patterns(PolicyKind::kGrad, gradients);
}

// Whether the policy lets a loss keep its logits, and tokens of a chunk where it says so, else 0.
std::tuple<bool, int64_t> loss_chunk(const std::string& policy) {
  const Treatment slot = Policy::parse(policy, "policy").slot("loss.logits", Role::kLogits);
  if (slot.storage() == Storage::kKeep) return {true, 0};
  COMPACT_CHECK(slot.storage() == Storage::kChunk,
                "slot `loss.logits` takes `keep` or `chunk:tokens=N`, is `", slot.text(), "`");
  return {false, slot.first().integer("tokens", 0)};
}

// scale * the sum of cross-entropies of hidden weight^T with targets (int64, -100 ignored), logits
// made for so many tokens at a time, 0: as many as are fast. The gradients are there when it
// returns.
at::Tensor chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& targets, double scale, int64_t tokens,
                                 double softcap) {
  const std::string text = tokens > 0 ? cat("chunk:tokens=", tokens) : "chunk";
  const LossTreatment treatment =
      LossTreatment::from(Treatment::parse(text), weight.size(0), device_type_of(hidden));
  if (StepTrace* const step = StepTrace::watching())
    step->groups().set_head(shape_of(weight), targets.numel());
  return linear_cross_entropy(hidden, weight, targets, scale, treatment, nullptr, softcap);
}

// Rows of logits [rows, vocabulary] in a type of kernels, a target int64 [rows] each: the logarithm
// of the sum of exponentials, and the cross-entropy, f32 [rows].
std::tuple<at::Tensor, at::Tensor> softmax_rows(const at::Tensor& logits,
                                                const at::Tensor& targets) {
  const auto f32 = logits.options().dtype(at::kFloat);
  const at::Tensor lse = at::empty({logits.size(0)}, f32), loss = at::empty_like(lse);
  softmax_forward(logits, targets.contiguous(), lse, loss, {});
  return {lse, loss};
}

// In place scale (softmax(logits) - onehot(target)) of each row.
void softmax_rows_gradient(const at::Tensor& logits, const at::Tensor& lse,
                           const at::Tensor& targets, double scale) {
  softmax_backward(logits, {}, lse, targets.contiguous(), scale, logits);
}

// Types of devices that this build has kernels for, as torch names them.
std::vector<std::string> devices() {
  std::vector<std::string> all = {"cpu"};
  for (const kernels::Backend* backend : kernels::backends()) {
    if (backend->device == kernels::Device::kCuda && all.size() == 1) all.push_back("cuda");
  }
  return all;
}

// Short names of the GPUs that plans know.
std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const GpuCard& card : gpu_cards()) names.emplace_back(card.name);
  return names;
}

// Makes a tensor of one element what an operation makes of a number: hooks of saved tensors do not
// see it.
void make_number(const at::Tensor& x) { x.unsafeGetTensorImpl()->set_wrapped_number(true); }

// Returns run(). Without this, Python would see an InputError of a method as a RuntimeError.
template <class F>
auto as_value_error(const F& run) {
  try {
    return run();
  } catch (const InputError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

// A method that does so.
template <class T, class R, class... Args>
auto checked(R (T::*method)(Args...)) {
  return [method](const c10::intrusive_ptr<T>& self, Args... args) {
    return as_value_error([&] { return ((*self).*method)(args...); });
  };
}

using BlockPtr = c10::intrusive_ptr<Block>;
using BlockState =
    std::tuple<std::string, std::string, std::string, Block::Numbers, Block::Adapters, int64_t>;
using ProjectedPtr = c10::intrusive_ptr<Projected>;
using ProjectedState =
    std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t>;  // the last: its draw

}  // namespace
}  // namespace compact

TORCH_LIBRARY(compact, m) {
  using namespace compact;
  m.class_<StepTrace>("StepTrace")
      .def(torch::init<int64_t, bool, bool>())
      .def("moment", &StepTrace::moment)
      .def("gradient", &StepTrace::gradient)
      .def("stop", &StepTrace::stop)
      .def("peak", &StepTrace::peak)
      .def("reserved", &StepTrace::reserved);
  m.class_<Projected>("Projected")
      .def("rank", &Projected::rank)
      .def("period", &Projected::period)
      .def("draw", &Projected::draw)
      .def("settings", &Projected::text)
      .def("redraw", &Projected::redraw)
      .def("matrix", &Projected::matrix)
      .def("update", checked(&Projected::update))
      .def_pickle(
          [](const ProjectedPtr& p) -> ProjectedState {
            return std::tuple_cat(p->settings(), std::tuple(p->draw()));
          },
          [](ProjectedState s) {
            auto p = c10::make_intrusive<Projected>(std::get<0>(s), std::get<1>(s), std::get<2>(s),
                                                    std::get<3>(s), std::get<4>(s));
            p->redraw(std::get<5>(s));
            return p;
          });
  m.class_<Block>("Block")
      .def(torch::init<std::string, std::string, std::string, Block::Numbers, Block::Adapters,
                       int64_t>())
      .def("forward", checked(&Block::forward))
      .def("weights", [](const BlockPtr& b) { return b->weights(); })
      .def("slots", &Block::slots)
      .def("held", &Block::held)
      .def("tiles", &Block::tiles)
      .def("masking",
           [](const BlockPtr& b) { return as_value_error([&] { return b->masking(); }); })
      .def("projections", &Block::projections)
      .def("projected", &Block::projected)
      .def("set_projected", &Block::set_projected)
      .def("keep_full", &Block::keep_full)
      .def_pickle(
          [](const BlockPtr& b) -> BlockState {
            return {b->kind(), b->name(), b->policy(), b->numbers(), b->adapters(), b->seed()};
          },
          [](BlockState s) {
            return c10::make_intrusive<Block>(std::get<0>(s), std::get<1>(s), std::get<2>(s),
                                              std::get<3>(s), std::get<4>(s), std::get<5>(s));
          });
  m.class_<PolicySearch>("PolicySearch")
      .def(torch::init([](const std::string& allow, const std::string& moments, bool half,
                          bool tf32, const PolicySearch::Speeds& known) {
        return as_value_error(
            [&] { return c10::make_intrusive<PolicySearch>(allow, moments, half, tf32, known); });
      }))
      .def("speeds", [](const c10::intrusive_ptr<PolicySearch>& s) { return s->speeds(); })
      .def("find", checked(&PolicySearch::find))
      .def("least_peak", checked(&PolicySearch::least_peak));
  m.def(kPlannedStep);
  m.class_<Meter>("Meter")
      .def(torch::init<>())
      .def("start", &Meter::start)
      .def("stop", &Meter::stop)
      .def("now", &Meter::now)
      .def("peak", &Meter::peak)
      .def("reset_peak", &Meter::reset_peak);
  m.def("policy_text", &policy_text);
  m.def("preset_names", &preset_names);
  m.def("moments_of", &moments_of);
  m.def("slot_budget", &slot_budget);
  m.def("slot_treatment", &slot_treatment);
  m.def("keeps_all", &keeps_all);
  m.def("parse_bytes", &bytes_of_text);
  m.def("check_patterns", &check_patterns);
  m.def("loss_chunk", &loss_chunk);
  m.def("chunked_cross_entropy", &chunked_cross_entropy);
  m.def("softmax_rows", &softmax_rows);
  m.def("softmax_rows_gradient", &softmax_rows_gradient);
  m.def("planned_gpu_memory", &planned_gpu_memory);
  m.def("gpu_figures", &gpu_figures);
  m.def("gpu_names", &gpu_names);
  m.def("devices", &devices);
  m.def("prepare_planning", &prepare_planning);
  m.def("planned_bytes", &planned_bytes);
  m.def("make_number", &make_number);
  m.def("choose_bf16_products", [] { as_value_error([] { choose_bf16_products(); }); });
  m.def("bf16_products", [] {
    return std::string(bf16_products() == Bf16Products::kConverted ? "converted" : "native");
  });
  m.def("version", [] { return std::string(COMPACT_VERSION); });
}
