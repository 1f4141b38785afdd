// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segment.h"

#include "compact/base/check.h"
#include "compact/ops/autograd.h"
#include "compact/ops/segment_node.h"

namespace compact {

std::string Slot::treatment_name() const {
  switch (storage) {
    case Storage::kKeep:
      return "keep";
    case Storage::kRecompute:
      return "recompute";
    case Storage::kSketch:
      return "sketch";
    case Storage::kCodec:
      return treatment;
  }
  return "";
}

Segment::Segment(std::string name, Slot input) : name_(std::move(name)), slots_{std::move(input)} {
  const Storage storage = slots_[0].storage;
  COMPACT_CHECK(slots_[0].name.empty() || storage == Storage::kKeep || storage == Storage::kCodec,
                "slot `", slots_[0].name,
                "` is a segment's input and can only be `keep` or a codec: everything else is "
                "rebuilt from it");
}

int Segment::add(std::shared_ptr<const Stage> stage, Slot output, Slot side) {
  const int made = add_branch(static_cast<int>(steps_.size()), std::move(stage), std::move(output));
  steps_.back().side = std::move(side);
  return made;
}

int Segment::add_branch(int input, std::shared_ptr<const Stage> stage, Slot output) {
  Step step{.stage = std::move(stage), .input = input};
  step.first_parameter = static_cast<int>(parameters_.size());
  for (const Parameter* p : step.stage->parameters()) parameters_.push_back(p);
  steps_.push_back(std::move(step));
  slots_.push_back(std::move(output));
  return static_cast<int>(steps_.size());
}

int Segment::add_residual(int other, Slot output) {
  steps_.push_back({.stage = nullptr, .input = static_cast<int>(steps_.size()), .other = other});
  steps_.back().first_parameter = static_cast<int>(parameters_.size());
  slots_.push_back(std::move(output));
  return static_cast<int>(steps_.size());
}

bool Segment::read_in_backward(int tensor) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!steps_[i].stage) continue;
    const Stage::Needs needs = steps_[i].stage->needs();
    if (needs.input && !steps_[i].sketch && steps_[i].input == tensor) return true;
    if (needs.output && static_cast<int>(i) + 1 == tensor) return true;
  }
  return false;
}

bool Segment::stored(int tensor) const {
  const Slot& slot = slots_[tensor];
  return !slot.name.empty() && (slot.storage == Storage::kKeep || slot.storage == Storage::kCodec);
}

bool Segment::rebuilt(int tensor) const {
  if (stored(tensor)) return true;
  if (tensor == 0) return false;
  const Step& step = steps_[tensor - 1];
  return rebuilt(step.input) && (step.other < 0 || rebuilt(step.other));
}

bool Segment::rounded(int tensor) const {
  const Slot& slot = slots_[tensor];
  if (!slot.name.empty() && slot.storage == Storage::kCodec)
    return content_of(slot.treatment) == Content::kRounded;
  if (stored(tensor) || tensor == 0) return false;
  const Step& step = steps_[tensor - 1];
  return rounded(step.input) || (step.other >= 0 && rounded(step.other));
}

void Segment::finish() {
  const int count = static_cast<int>(slots_.size());
  const auto check_sketch = [](bool possible, const Slot& slot) {
    COMPACT_CHECK(
        possible, "slot `", slot.name,
        "` = sketch: its reader must be a linear whose gradient is `project`; set that, or "
        "keep or recompute the slot");
  };
  for (const Step& step : steps_) check_sketch(step.side.storage != Storage::kSketch, step.side);
  for (int t = 1; t < count; ++t) {
    if (slots_[t].storage != Storage::kSketch) continue;
    bool read = false;
    for (Step& step : steps_) {
      if (!step.stage || step.input != t) continue;  // no backward of a sum reads what it adds
      check_sketch(step.stage->sketch_width() > 0, slots_[t]);
      read = step.sketch = true;
    }
    check_sketch(read, slots_[t]);
  }
  const auto check_values = [](const Slot& slot) {
    COMPACT_CHECK(slot.storage != Storage::kCodec || content_of(slot.treatment) != Content::kSigns,
                  "slot `", slot.name, "` = ", slot.treatment,
                  ": the operation behind it reads values, not signs");
  };
  for (const Step& step : steps_) {
    if (step.stage && step.stage->needs().input) check_values(slots_[step.input]);
    check_values(step.side);
  }
  for (int t = 0; t < count; ++t) {
    COMPACT_CHECK(!read_in_backward(t) || stored(t) || rebuilt(t), "slot `", slots_[t].name,
                  "` = recompute: it is made of what the segment before gives, which is not kept; "
                  "keep it or give it a codec");
  }
  last_reader_.assign(count, -1);
  std::vector<int> readers(count, 0);
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    for (const int t : {steps_[i].input, steps_[i].other}) {
      if (t < 0) continue;
      last_reader_[t] = i;
      ++readers[t];
    }
  }
  overwritable_.assign(count, false);
  for (int t = 0; t < count; ++t) {
    overwritable_[t] = readers[t] == 1 && !stored(t) && !read_in_backward(t);
    COMPACT_CHECK(
        t == 0 || slots_[t].name.empty() || !stored(t) || t + 1 == count || read_in_backward(t),
        "slot `", slots_[t].name, "` is never read by a backward pass");
  }
}

at::Tensor Segment::run(size_t i, Tensors& t, Stage::Forward& f) const {
  const Step& step = steps_[i];
  f.overwrite = overwritable_[step.input] && (step.input > 0 || alone(t[0]));
  // Where it may be overwritten the only reference is passed on.
  f.input = f.overwrite ? std::move(t[step.input]) : t[step.input];
  if (step.stage) return step.stage->forward(f);
  return f.overwrite ? f.input.add_(t[step.other]) : f.input + t[step.other];
}

std::vector<SlotBytes> Segment::bytes(int64_t tokens, int64_t element_size) const {
  std::vector<SlotBytes> rows;
  int64_t extra_floats = 0;
  const at::ScalarType type = element_size == 4 ? at::kFloat : at::kBFloat16;
  const auto row = [&](const Slot& slot, int64_t sketch_width) {
    if (slot.name.empty()) return;
    SlotBytes b{.name = slot.name, .if_kept = tokens * slot.width * element_size};
    b.treatment = slot.treatment_name();
    if (slot.storage == Storage::kKeep) b.stored = b.if_kept;
    if (slot.storage == Storage::kSketch) b.stored = tokens * sketch_width * element_size;
    if (slot.storage == Storage::kCodec) {
      b.stored = slot.codec->bytes(tokens, slot.width, type).value_or(0);
    }
    rows.push_back(std::move(b));
  };
  row(slots_[0], 0);
  for (size_t i = 0; i < steps_.size(); ++i) {
    int64_t width = 0;
    for (const Step& reader : steps_) {
      if (reader.sketch && reader.input == static_cast<int>(i) + 1)
        width += reader.stage->sketch_width();
    }
    row(steps_[i].side, 0);
    row(slots_[i + 1], width);
    if (steps_[i].stage) extra_floats += steps_[i].stage->extra_floats();
  }
  const int64_t extras = tokens * extra_floats * static_cast<int64_t>(sizeof(float));
  const std::string prefix = slots_[0].name.substr(0, slots_[0].name.find_last_of('.'));
  if (extras) rows.push_back({prefix + ".extras", "keep", extras, extras});
  return rows;
}

std::vector<Slot> Segment::codec_slots() const {
  std::vector<Slot> found;
  const auto add = [&](const Slot& slot) {
    if (!slot.name.empty() && slot.storage == Storage::kCodec) found.push_back(slot);
  };
  for (const Slot& slot : slots_) add(slot);
  for (const Step& step : steps_) add(step.side);
  return found;
}

void Segment::set_codec(const std::string& slot, const std::string& treatment) {
  bool found = false;
  const auto set = [&](Slot& s) {
    if (s.name != slot || s.storage != Storage::kCodec) return;
    s.codec = make_codec(treatment);
    s.treatment = treatment;
    found = true;
  };
  for (Slot& s : slots_) set(s);
  for (Step& step : steps_) set(step.side);
  COMPACT_CHECK(found, "no codec holds slot `", slot, "`");
}

void Segment::set_codecs(const Policy& policy) {
  for (const Slot& slot : codec_slots()) {
    if (policy.names(PolicyKind::kSlot, slot.name))
      set_codec(slot.name, policy.slot_text(slot.name));
  }
}

at::Tensor Segment::operator()(const at::Tensor& x, const at::Tensor& lengths) const {
  return run_segment(*this, x, lengths);
}
at::Tensor Segment::operator()(at::Tensor&& x, const at::Tensor& lengths) const {
  return run_segment(*this, std::move(x), lengths);
}

}  // namespace compact
