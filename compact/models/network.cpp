// SPDX-License-Identifier: Apache-2.0
#include "compact/models/network.h"

#include <ATen/ATen.h>

#include <map>

#include "compact/base/check.h"

namespace compact {

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

int64_t Network::parameter_count() const {
  int64_t count = 0;
  for (const auto& p : parameters_) count += p->weight.numel();
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

std::span<const Parameter* const> Network::parameters_of(const Segment& segment) const {
  for (const auto& part : parts_) {
    if (&part->segment == &segment) return part->parameters;
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
    for (const SlotUse& use : part->segment.uses()) all.push_back({use.name, use.role});
  }
  return all;
}

void Network::set_codecs(const Policy& policy) {
  for (const auto& part : parts_) part->segment.set_codecs(policy);
}

Parameter& Network::add_parameter(Parameter p) {
  return *parameters_.emplace_back(std::make_unique<Parameter>(std::move(p)));
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

}  // namespace compact
