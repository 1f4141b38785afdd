// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/treatments.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

std::span<const TreatmentInfo> treatments() {
  static const TreatmentInfo all[] = {
      {PolicyKind::kSlot, "keep", "", "the tensor as it is"},
      {PolicyKind::kSlot, "recompute", "", "rebuilt exactly in the backward pass"},
      {PolicyKind::kSlot, "sketch", "",
       "only its random projection, where every reader is a linear whose gradient is `project`"},
      {PolicyKind::kSlot, "chunk", "tokens=N (default: chunks of about 2^24 logits)",
       "loss.logits only: loss and gradients one chunk of tokens at a time"},
      {PolicyKind::kGrad, "full", "lr_scale=1,release=false",
       "the weight's whole gradient; release: updated and freed inside the backward pass"},
      {PolicyKind::kGrad, "project",
       "rank=0.25,type=srht,share=true,period=200,scale=1,carry=true,lr_scale=1,release=false",
       "gradient and moments in a random projection of the input space (CompAct)"},
      {PolicyKind::kMoment, "f32", "", "optimizer state in f32"},
      {PolicyKind::kMoment, "bf16", "", "optimizer state in bf16, rounded stochastically"},
      {PolicyKind::kMoment, "f8", "",
       "optimizer state in 8-bit floats that share a power of two over 256 neighbours"},
  };
  return all;
}

void check_treatment(PolicyKind kind, const std::vector<Spec>& chain) {
  const Spec& spec = chain[0];
  if (kind == PolicyKind::kSlot && find_codec(spec.name)) {
    make_codec(Spec::chain_str(chain));
    for (size_t i = 1; i < chain.size(); ++i) {
      COMPACT_CHECK(!chain[i].has("adapt"), "treatment `", Spec::chain_str(chain),
                    "`: bits are chosen of the first codec only");
    }
    return;
  }
  COMPACT_CHECK(chain.size() == 1, "treatment `", Spec::chain_str(chain),
                "`: only codecs of slots are joined by `+`");
  std::vector<std::string> known;
  bool found = false;
  for (const TreatmentInfo& t : treatments()) {
    if (t.kind != kind) continue;
    known.push_back(t.name);
    found = found || t.name == spec.name;
  }
  if (kind == PolicyKind::kSlot) {
    for (const CodecInfo* c : codecs()) known.push_back(c->name);
  }
  COMPACT_CHECK(found, "no treatment `", spec.name, "`", suggestion(spec.name, known));
  if (spec.name == "chunk") {
    spec.allow({"tokens"});
    COMPACT_CHECK(spec.integer("tokens", 1) >= 1, "chunk:tokens must be at least 1, is ",
                  spec.text("tokens", ""));
  } else if (spec.name == "full") {
    spec.allow({"lr_scale", "release"});
  } else if (spec.name == "project") {
    spec.allow({"rank", "type", "share", "period", "scale", "carry", "lr_scale", "release"});
    const double rank = spec.number("rank", 0.25);
    COMPACT_CHECK(rank > 0 && (rank < 1 || (rank < 0x1p31 && rank == std::floor(rank))),
                  "project:rank must be a fraction below 1 or an integer from 1 up, is ",
                  spec.text("rank", ""));
    COMPACT_CHECK(spec.integer("period", 200) >= 0, "project:period must not be negative, is ",
                  spec.text("period", ""));
    std::vector<std::string> types;
    for (const ProjectionInfo* p : projections()) types.push_back(p->name);
    const std::string type = spec.text("type", "srht");
    COMPACT_CHECK(std::find(types.begin(), types.end(), type) != types.end(), "no projection `",
                  type, "`", suggestion(type, types));
    spec.number("scale", 1);
    spec.flag("share", true);
    spec.flag("carry", true);
  } else {
    spec.allow({});
  }
  lr_scale_of(spec);
  spec.flag("release", false);
}

Slot slot_of(const Policy& policy, const std::string& name, int64_t width) {
  Slot slot{.name = name, .width = width};
  const Spec how = policy.slot(name);
  if (find_codec(how.name)) {
    slot.storage = Storage::kCodec;
    slot.treatment = policy.slot_text(name);
    slot.codec = make_codec(slot.treatment);
    return slot;
  }
  if (how.name == "recompute") slot.storage = Storage::kRecompute;
  if (how.name == "sketch") slot.storage = Storage::kSketch;
  COMPACT_CHECK(how.name != "chunk", "treatment `", how.str(), "` is for loss.logits only");
  return slot;
}

double lr_scale_of(const Spec& grad) {
  const double scale = grad.number("lr_scale", 1);
  COMPACT_CHECK(scale >= 0, "lr_scale must not be negative, is ", scale);
  return scale;
}

std::shared_ptr<Carrier> make_carrier(const Spec& grad, const std::string& name,
                                      const at::Tensor& weight, const std::vector<int64_t>& parts,
                                      uint64_t key) {
  if (grad.name == "full") return nullptr;
  auto carrier = std::make_shared<Carrier>();
  try {
    carrier->in = weight.size(1);
    carrier->rank = resolve_rank(grad.number("rank", 0.25), carrier->in);
  } catch (const InputError& e) {
    fail("grad `", name, "` = ", grad.str(), ": ", e.what());
  }
  const bool share = grad.flag("share", true);
  carrier->rows = share ? std::vector<int64_t>{weight.size(0)} : parts;
  carrier->type = grad.text("type", "srht");
  carrier->period = grad.integer("period", 200);
  carrier->scale = grad.number("scale", 1);
  carrier->carry = grad.flag("carry", true);
  carrier->key = key;
  carrier->value = zero_leaf({weight.size(0), carrier->rank}, weight.options());
  carrier->redraw(0, weight.options());
  return carrier;
}

}  // namespace compact
