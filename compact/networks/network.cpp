// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/network.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/draw.h"
#include "compact/codecs/placed_weights.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/functions/dropout.h"
#include "compact/ops/stages/stages.h"

namespace compact {

namespace {

// The last words of names with dots, each once: "q_proj, k_proj".
std::string ends_of(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  std::string all;
  for (const std::string& name : names) {
    const std::string end = name.substr(name.rfind('.') + 1);
    if (seen.insert(end).second) all += (all.empty() ? "" : ", ") + end;
  }
  return all;
}

}  // namespace

std::vector<SlotBytes> PassReport::all_slots() const {
  std::vector<SlotBytes> all = slots;
  for (const SavedTensor& t : plain.tensors) {
    if (t.parameter || (t.shared && t.stored == 0)) continue;
    all.push_back({t.name, t.treatment.text(), t.stored, t.shared ? 0 : t.bytes});
  }
  return all;
}

std::vector<Parameter*> Network::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& p : parameters_) all.push_back(p.get());
  return all;
}

std::vector<Parameter*> Network::trained() const {
  std::vector<Parameter*> all = parameters();
  std::erase_if(all, [](const Parameter* p) { return !p->trained; });
  return all;
}

int64_t Network::parameter_count() const {
  int64_t count = 0;
  for (const auto& p : parameters_) count += p->count();
  return count;
}

std::string Network::found_name(const std::string& name,
                                FunctionRef<bool(const std::string&)> has) const {
  if (has(name)) return name;
  for (const std::string& other : other_names(name)) {
    if (has(other)) return other;
  }
  return name;
}

std::vector<const Segment*> Network::segments() const {
  std::vector<const Segment*> all;
  for (const auto& part : parts_) all.push_back(&part->segment);
  return all;
}

std::vector<Parameter*> Network::parameters_of(const Segment& segment) const {
  for (const auto& part : parts_) {
    if (&part->segment != &segment) continue;
    std::vector<Parameter*> all;
    for (const Parameter* read : part->parameters) {
      const auto own =
          std::ranges::find_if(parameters_, [&](const auto& p) { return p.get() == read; });
      COMPACT_CHECK(own != parameters_.end(), "[network] `", segment.name(), "` reads `",
                    read->name, "`, which is not of this network");
      all.push_back(own->get());
    }
    return all;
  }
  fail("[network] segment `", segment.name(), "` is not of this network");
}

void Network::each_segment(const Tensors& inputs, const at::Tensor& target, Pass pass,
                           SeeSegment see) const {
  pass.see = &see;
  loss(inputs, target, pass);
}

std::vector<CodecTensor> Network::codec_tensors(const PassReport& report) const {
  std::map<std::string, int64_t> bytes;
  for (const SlotBytes& row : report.slots) bytes[row.name] = row.if_kept;
  const auto size = static_cast<int64_t>(c10::elementSize(dtype()));
  std::vector<CodecTensor> all;
  for (const auto& part : parts_) {
    for (const Slot& slot : part->segment.codec_slots()) {
      if (bytes[slot.name] == 0) continue;
      all.push_back({slot.name, slot.treatment, bytes[slot.name] / size, dtype()});
    }
  }
  for (const SavedTensor& t : report.plain.tensors) {
    if (t.stored == 0 || !t.treatment.codec()) continue;
    const auto width = static_cast<int64_t>(c10::elementSize(t.type));
    all.push_back({t.name, t.treatment, t.bytes / width, t.type});
  }
  return all;
}

std::vector<NamedRole> Network::segment_slots() const {
  std::vector<NamedRole> all;
  for (const auto& part : parts_) {
    for (const SlotUse& use : part->segment.uses()) {
      all.push_back({use.name, use.role, use.in_tiles});
    }
  }
  return all;
}

void Network::set_codecs(const Policy& policy) {
  for (const auto& part : parts_) part->segment.set_codecs(policy);
}

Network::Network(Policy policy, const NetworkOptions& options)
    : policy_(std::move(policy)), options_(options) {
  choose_bf16_products();
}

uint64_t Network::key_of(const std::string& name) const {
  return derive(options_.seed, label_of(name.data(), name.size()));
}

const Parameter* Network::parameter(const std::string& name, const at::Tensor& value, bool hidden,
                                    std::vector<int64_t> parts, const ZeroPadding& padding) {
  Parameter p;
  p.name = name;
  p.weight = value.requires_grad_(true);
  p.hidden = hidden;
  p.decay = value.dim() > 1;
  p.parts = parts.empty() ? std::vector<int64_t>{value.size(0)} : std::move(parts);
  p.padding = padding;
  // Matrices of blocks and convolutions at once, so that no device need hold all; others once it is
  // known what reads them, those that will be in codes with these.
  if ((hidden || value.dim() == 4) && !options_.nf4) move_out(p);
  return parameters_.emplace_back(std::make_unique<Parameter>(std::move(p))).get();
}

Network::Affine Network::linear(const std::string& name, int64_t in, std::vector<int64_t> out,
                                const LinearStart& start) {
  const int64_t given = std::accumulate(out.begin(), out.end(), int64_t{0});
  at::Tensor values = normal(name, {given, in}, start.deviation);
  const ZeroPadding& padding = start.padding;
  for (int64_t& rows : out) rows += padding.rows;
  if (padding.rows + padding.columns > 0) values = padded(values, out, padding);
  const int64_t rows = values.size(0);
  const std::vector<int64_t> of_bias = padding.rows > 0 ? out : std::vector<int64_t>{};
  Affine l{.weight = parameter(name, values, start.hidden, std::move(out), padding)};
  if (start.bias) {
    l.bias = parameter(name + ".bias", at::zeros({rows}, tensor_options()), false, of_bias,
                       {.rows = padding.rows});
  }
  return l;
}

Network::Affine Network::layer_norm(const std::string& name, int64_t width) {
  const auto f32 = tensor_options().dtype(at::kFloat);
  return {parameter(name, at::ones({width}, f32)),
          parameter(name + ".bias", at::zeros({width}, f32))};
}

at::Tensor Network::normal(const std::string& name, at::IntArrayRef sizes, double deviation) const {
  const at::Tensor x = at::empty(sizes, tensor_options());
  draw(x, kernels::Distribution::kNormal, deviation, key_of(name));
  return x;
}

void Network::hold_in_codes(const Affine& affine, const std::vector<const char*>& names) {
  if (!options_.nf4) return;
  if (!nf4_) nf4_ = std::make_shared<Nf4Weights>(options_.nf4->nested, options_.device);
  for (const auto& p : parameters_) {
    if (p.get() != affine.weight) continue;
    nf4_->take(*p, names.size() > 1 ? p->parts : std::vector{p->weight.size(0)});
    move_out(*p);
  }
}

std::vector<at::Tensor> Network::move_out(Parameter& p) const {
  const MemoryPlace place = policy_.weight(p.name);
  if (!is_outside(place, device())) return {};
  const std::vector<at::Tensor> all =
      p.places.empty() ? std::vector{p.weight.detach()} : p.places[0].home->held(p.weight);
  if (p.place == MemoryPlace::kDevice) {
    for (const at::Tensor& t : all) move_to(place, t, options_.offload_folder);
  }
  p.place = place;
  return all;
}

void Network::place_weights() {
  if (!policy_.has(PolicyKind::kWeight)) return;
  std::map<const Parameter*, int> readers;
  for (const auto& part : parts_) {
    for (const Parameter* p : part->parameters) ++readers[p];
  }
  std::vector<NamedRole> all, apart;
  for (const auto& p : parameters_) all.push_back({p->name});
  const auto home = std::make_shared<PlacedWeights>();
  for (const auto& part : parts_) {
    std::vector<at::Tensor> group;
    std::vector<Parameter*> read;
    for (Parameter* p : parameters_of(part->segment)) {
      if (p->weight.dim() < 2 || readers[p] > 1) continue;
      apart.push_back({p->name});
      const std::vector<at::Tensor> moved = move_out(*p);
      group.insert(group.end(), moved.begin(), moved.end());
      if (!moved.empty()) read.push_back(p);
    }
    if (group.empty()) continue;
    const int number = home->add(std::move(group));
    for (Parameter* p : read) p->places.insert(p->places.begin(), {home, number});
  }
  policy_.check_patterns(PolicyKind::kWeight, all);
  policy_.check_patterns(PolicyKind::kWeight, apart,
                         " that may lie elsewhere: matrices that one segment alone reads, not "
                         "vectors, embeddings and heads");
}

std::vector<at::Tensor> Network::held(const at::Tensor& named) const {
  const Nf4* const codes = nf4_ ? nf4_->find(named) : nullptr;
  return codes ? codes->tensors() : std::vector{named};
}

void Network::adapt(Affine& affine, const std::string& prefix,
                    const std::vector<const char*>& names) {
  const Lora& lora = options_.lora;
  if (lora.rank == 0) return;
  const Parameter& weight = *affine.weight;
  const int64_t in = weight.weight.size(1) - weight.padding.columns;
  const auto f32 = tensor_options().dtype(at::kFloat);
  int64_t first = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string module = prefix + names[i];
    const int64_t rows = names.size() > 1 ? weight.parts[i] : weight.weight.size(0);
    adaptable_.push_back(module);
    if (lora.takes(module)) {
      const std::string name = cat(weight.name, ".adapter.", affine.adapters.size());
      at::Tensor a = at::empty({lora.rank, in}, f32);
      // As Kaiming et al. with a = sqrt(5), in peft as in linear layers of torch.
      draw(a, kernels::Distribution::kUniform, 1 / std::sqrt(3.0 * static_cast<double>(in)),
           key_of(name));
      const ZeroPadding columns = {.columns = weight.padding.columns};
      if (columns.columns > 0) a = padded(a, {lora.rank}, columns);
      adapted_.push_back(
          {module, parameter(name + ".A", a, true, {}, columns),
           parameter(name + ".B", at::zeros({rows - weight.padding.rows, lora.rank}, f32), true)});
      affine.adapters.push_back(
          {.how = {.first = first, .scale = lora.scale(), .dropout = lora.dropout},
           .a = adapted_.back().a,
           .b = adapted_.back().b});
    }
    first += rows;
  }
}

std::vector<std::pair<std::string, at::Tensor>> Network::adapter_tensors() const {
  NamedTensors all;
  for (const auto& [module, a, b] : adapted_) {
    put(all, cat("base_model.model.", module, ".lora_A"), {a});
    put(all, cat("base_model.model.", module, ".lora_B"), {b});
  }
  return all;
}

std::vector<std::string> Network::adapted_modules() const {
  std::vector<std::string> all;
  for (const Adapted& one : adapted_) all.push_back(one.module);
  return all;
}

void Network::treat_parameters() {
  const Lora& lora = options_.lora;
  COMPACT_CHECK(lora.rank == 0 || !adaptable_.empty(),
                "adapters (--use_peft) are for decoders of LLaMA's and of Gemma's kind");
  COMPACT_CHECK(!options_.nf4 || lora.rank > 0,
                "weights in four bits (--load_in_4bit) are frozen: they are for adapters "
                "(--use_peft)");
  for (const std::string& target : lora.targets) {
    const Lora one = {.targets = {target}};
    COMPACT_CHECK(std::ranges::any_of(adaptable_, [&](const auto& m) { return one.takes(m); }),
                  "--lora_target_modules: the model has no `", target, "`", "; its products are ",
                  ends_of(adaptable_));
  }
  std::set<const Parameter*> adapters;
  for (const auto& [module, a, b] : adapted_) adapters.insert({a, b});
  std::vector<NamedRole> names, moving;
  bool named = false;
  for (const auto& p : parameters_) {
    Spec grad = policy_.grad(p->name);
    COMPACT_CHECK(lora.rank == 0 || grad.name != "project", "grad `", p->name, "` = ", grad.str(),
                  ": beside adapters (--use_peft) no gradient is projected; take another preset, "
                  "as exact");
    if (lora.rank > 0 && !adapters.contains(p.get())) grad = Spec::parse("frozen");
    COMPACT_CHECK(grad.name != "project" || p->hidden, "grad `", p->name, "` = ", grad.str(),
                  ": gradients are projected in the matrices of transformer blocks only");
    treat_gradient(*p, grad, derive(key_of(p->name), 1));
    names.push_back({p->name});
    if (grad.name != "frozen") moving.push_back({p->name});
    named = named || policy_.names(PolicyKind::kGrad, p->name);
  }
  policy_.check_patterns(PolicyKind::kGrad, names);
  COMPACT_CHECK(parameters_.empty() || !trained().empty(),
                "`grad ... = frozen` of every parameter leaves nothing to train");
  COMPACT_CHECK(named || !policy_.has(PolicyKind::kGrad),
                "the policy or preset projects gradients of the matrices of transformer blocks, "
                "which this network lacks");
  policy_.check_patterns(PolicyKind::kMoment, names);
  const char* const idle = lora.rank > 0 ? " of what is trained: beside adapters (--use_peft) all "
                                           "weights but theirs are frozen"
                                         : " of what is trained";
  if (lora.rank > 0) policy_.check_patterns(PolicyKind::kGrad, moving, idle);
  policy_.check_patterns(PolicyKind::kMoment, moving, idle);
}

void Network::put(NamedTensors& all, const std::string& prefix, const Affine& affine,
                  const std::vector<const char*>& names) {
  const ZeroPadding& padding = affine.weight->padding;
  const at::Tensor weight = affine.weight->weight.detach();
  const bool fused = affine.weight->parts.size() == names.size();
  COMPACT_CHECK(fused || names.size() == 1, "[network] `", affine.weight->name, "` has ",
                affine.weight->parts.size(), " parts, not ", names.size());
  COMPACT_CHECK(fused || padding.rows == 0, "[network] `", affine.weight->name,
                "` has padding between its parts");
  int64_t row = 0;
  size_t part = 0;
  for (const std::string name : names) {
    const int64_t rows = fused ? affine.weight->parts[part++] : weight.size(0);
    const std::string dot = name.empty() && (prefix.empty() || prefix.ends_with('.')) ? "" : ".";
    const int64_t real = rows - padding.rows;
    all.emplace_back(prefix + name + dot + "weight",
                     weight.dim() == 2
                         ? part_of_matrix(weight, row, real, weight.size(1) - padding.columns)
                         : weight.narrow(0, row, real));
    if (affine.bias) {
      all.emplace_back(prefix + name + dot + "bias",
                       affine.bias->weight.detach().narrow(0, row, real));
    }
    row += rows;
  }
}

Network::DropoutKeys::DropoutKeys(const Pass& pass)
    : key_(derive(pass.noise, label_of("dropout", 7))) {}

uint64_t Network::DropoutKeys::next() { return derive(key_, ++drawn_); }

at::Tensor Network::DropoutKeys::drop(const at::Tensor& x, double p) {
  return p == 0 ? x : autograd_dropout(x, p, next());
}

Network::Part& Network::add_part(std::string name, Slot input) {
  return *parts_.emplace_back(std::make_unique<Part>(std::move(name), std::move(input)));
}

int Network::Part::add(std::shared_ptr<const Stage> stage,
                       std::initializer_list<const Parameter*> read, Slot output, Slot side) {
  parameters.insert(parameters.end(), read);
  return segment.add(std::move(stage), std::move(output), std::move(side));
}

int Network::Part::add_branch(int input, std::shared_ptr<const Stage> stage,
                              std::initializer_list<const Parameter*> read, Slot output) {
  parameters.insert(parameters.end(), read);
  return segment.add_branch(input, std::move(stage), std::move(output));
}

int Network::Part::add_linear(const Affine& l, Slot output) {
  const Carrier* const carrier = l.weight->carrier.get();
  const LinearOptions options = {.bias = l.bias != nullptr,
                                 .parts = 1 + static_cast<int64_t>(l.others.size()),
                                 .sketch_width = carrier ? carrier->width() : 0,
                                 .zeros = l.weight->padding.columns};
  std::vector<LowRankAdapter> adapters;
  parameters.push_back(l.weight);
  for (const Affine& other : l.others) parameters.push_back(other.weight);
  if (l.bias) {
    parameters.push_back(l.bias);
    for (const Affine& other : l.others) parameters.push_back(other.bias);
  }
  for (const Adapter& adapter : l.adapters) {
    adapters.push_back(adapter.how);
    parameters.insert(parameters.end(), {adapter.a, adapter.b});
  }
  return segment.add(
      adapters.empty() ? linear_stage(options) : adapted_linear_stage(options, adapters),
      std::move(output));
}

}  // namespace compact
