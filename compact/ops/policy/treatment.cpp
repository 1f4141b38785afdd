// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy/treatment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/codecs/memory_place.h"
#include "compact/codecs/parameter.h"

namespace compact {
namespace {

const CodecInfo& codec_of(const Spec& spec) { return named(codecs(), spec.name, "no codec"); }

void check_projection(const Spec& spec) {
  const double rank = spec.number("rank", 0.25);
  COMPACT_CHECK(rank > 0 && (rank < 1 || (rank < 0x1p31 && rank == std::floor(rank))),
                "project:rank must be a fraction below 1 or an integer from 1 up, is ",
                spec.text("rank", ""));
  COMPACT_CHECK(spec.integer("period", 200) >= 0, "project:period must not be negative, is ",
                spec.text("period", ""));
  named(projections(), spec.text("type", "srht"), "no projection");
  spec.number("scale", 1);
  spec.flag("share", true);
  spec.flag("carry", true);
}

}  // namespace

ByteBudget budget_of(const Spec& treatment) {
  const std::string text = treatment.text("budget", "");
  if (treatment.name != "recompute" || text.empty()) return {};
  ByteBudget budget;
  if (text.ends_with('%')) {
    budget.part = parse_number(text.substr(0, text.size() - 1)).value_or(0) / 100;
  } else {
    budget.bytes = parse_bytes(text).value_or(0);
  }
  COMPACT_CHECK(budget && budget.part >= 0 && budget.part < 1,
                "recompute:budget must be bytes, as 10GiB, or a part below 100%, is ", text);
  return budget;
}

std::span<const TreatmentInfo> treatments() {
  static const TreatmentInfo all[] = {
      {PolicyKind::kSlot, "keep", "", "the tensor as it is", Storage::kKeep},
      {PolicyKind::kSlot, "recompute", "budget=BYTES or PART% (role:heavy only)",
       "rebuilt exactly in the backward pass", Storage::kRecompute},
      {PolicyKind::kSlot, "tile", "tokens=4096",
       "never whole: made and rebuilt for some tokens at a time, between operations that treat "
       "tokens one by one; elsewhere recompute",
       Storage::kRecompute},
      {PolicyKind::kSlot, "sketch", "",
       "only its random projection, where every reader is a linear whose gradient is `project`",
       Storage::kSketch},
      {PolicyKind::kSlot, "chunk", "tokens=N (default: chunks of about 2^24 logits)",
       "loss.logits only: loss and gradients one chunk of tokens at a time", Storage::kChunk},
      {PolicyKind::kGrad, "full", "lr_scale=1,release=false",
       "the weight's whole gradient; release: updated and freed inside the backward pass"},
      {PolicyKind::kGrad, "project",
       "rank=0.25,type=srht,share=true,period=200,scale=1,carry=true,dense=false,lr_scale=1,"
       "release=false",
       "gradient and moments in a random projection of the input space (CompAct)"},
      {PolicyKind::kGrad, "frozen", "",
       "none: the parameter stays as it is, without moments and updates"},
      {PolicyKind::kMoment, "f32", "",
       "optimizer state in f32; with +offload in the host's "
       "memory, where a GPU works on it; with +disk, on a CPU, in files of --offload_folder"},
      {PolicyKind::kMoment, "bf16", "", "optimizer state in bf16, rounded stochastically"},
      {PolicyKind::kMoment, "f8", "",
       "optimizer state in 8-bit floats that share a power of two over 256 neighbours"},
      {PolicyKind::kWeight, "keep", "", "in the device's memory"},
      {PolicyKind::kWeight, "offload", "",
       "in the memory of a GPU's host, copied to the GPU for as long as its segment runs"},
      {PolicyKind::kWeight, "disk", "",
       "on a CPU in files of --offload_folder, copied to memory for as long as its segment runs"},
  };
  return all;
}

void check_treatment(PolicyKind kind, const std::vector<Spec>& chain) {
  const Spec& spec = chain[0];
  COMPACT_CHECK(chain.size() == 1 || (kind == PolicyKind::kMoment && chain.size() == 2),
                "treatment `", Spec::chain_str(chain),
                "`: only codecs of slots are joined by `+`, and moments with their place");
  if (chain.size() > 1) memory_place(chain[1].name);
  std::vector<std::string> known;
  for (const TreatmentInfo& t : treatments()) {
    if (t.kind == kind) known.push_back(t.name);
  }
  const bool found = std::ranges::find(known, spec.name) != known.end();
  if (kind == PolicyKind::kSlot) {
    for (const CodecInfo* c : codecs()) known.push_back(c->name);
  }
  if (kind == PolicyKind::kMoment) {
    for (const char* placed : {"f32+offload", "f32+disk"}) known.emplace_back(placed);
  }
  COMPACT_CHECK(found, "no treatment `", spec.name, "`", suggestion(spec.name, known));
  if (spec.name == "chunk" || spec.name == "tile") {
    spec.allow({"tokens"});
    COMPACT_CHECK(spec.integer("tokens", 1) >= 1, spec.name, ":tokens must be at least 1, is ",
                  spec.text("tokens", ""));
  } else if (spec.name == "recompute") {
    spec.allow({"budget"});
    budget_of(spec);
  } else if (spec.name == "full") {
    spec.allow({"lr_scale", "release"});
  } else if (spec.name == "project") {
    spec.allow(
        {"rank", "type", "share", "period", "scale", "carry", "dense", "lr_scale", "release"});
    check_projection(spec);
  } else {
    for (const Spec& each : chain) each.allow({});
  }
  lr_scale_of(spec);
  spec.flag("release", false);
}

Treatment::Treatment() {
  static const Treatment keep(std::vector<Spec>{Spec::parse("keep")});
  parsed_ = keep.parsed_;
}

Treatment::Treatment(std::vector<Spec> chain) {
  COMPACT_CHECK(!chain.empty(), "a treatment has a name");
  auto parsed = std::make_shared<Parsed>();
  if (find_codec(chain[0].name)) {
    parsed->storage = Storage::kCodec;
    parsed->codec = make_codec(chain);
    parsed->content = content_of(chain);
    for (size_t i = 1; i < chain.size(); ++i) {
      const CodecInfo& codec = codec_of(chain[i]);
      COMPACT_CHECK(!codec.bits || !codec.bits(chain[i]).average, "treatment `",
                    Spec::chain_str(chain), "`: bits are chosen of the first codec only");
    }
  } else {
    check_treatment(PolicyKind::kSlot, chain);
    parsed->storage = named(treatments(), chain[0].name, "no treatment").storage;
    if (chain[0].name == "tile") parsed->tile = chain[0].integer("tokens", 4096);
  }
  parsed->text = Spec::chain_str(chain);
  parsed->chain = std::move(chain);
  parsed_ = std::move(parsed);
}

const Treatment& Treatment::of_signs() {
  static const Treatment signs = parse("mask:of=sign");
  return signs;
}

std::optional<Treatment> Treatment::with_signs() const {
  if (content() != Content::kRounded) return *this;
  const auto change = codec_of(first()).with_signs;
  const std::optional<Spec> changed = change ? change(first()) : std::nullopt;
  if (!changed) return std::nullopt;
  return beginning_with(*changed);
}

Treatment Treatment::by_channels() const {
  if (storage() != Storage::kCodec) return *this;
  std::vector<Spec> changed = chain();
  for (Spec& link : changed) {
    if (const auto change = codec_of(link).by_channels) link = change(link);
  }
  return Treatment(std::move(changed));
}

Treatment Treatment::by_rows() const {
  const auto change = codec_of(first()).by_rows;
  return change ? beginning_with(change(first())) : *this;
}

Treatment Treatment::by_rows(int64_t row, int64_t width) const {
  if (content() != Content::kRounded || first().has("along") || !codec_of(first()).by_rows) {
    return *this;
  }
  const int64_t group = first().integer("group", 256), shared = std::gcd(group, row);
  if (shared == group) return *this;
  if (row == width) return by_rows();
  Spec shorter = first();
  shorter.set("group", cat(shared));
  return shared < 32 ? *this : beginning_with(shorter);
}

Treatment Treatment::beginning_with(const Spec& codec) const {
  std::vector<Spec> changed = chain();
  changed[0] = codec;
  return Treatment(std::move(changed));
}

std::optional<CodecBits> Treatment::bits() const {
  const CodecInfo* const codec = find_codec(first().name);
  if (!codec || !codec->bits) return std::nullopt;
  return codec->bits(first());
}

Treatment Treatment::with_bits(int bits) const {
  return beginning_with(codec_of(first()).with_bits(first(), bits, std::nullopt));
}

std::optional<Treatment> Treatment::halved() const {
  if (storage() != Storage::kCodec) return std::nullopt;
  std::vector<Spec> changed = chain();
  bool any = false;
  for (Spec& link : changed) {
    const CodecInfo& codec = codec_of(link);
    if (!codec.bits) continue;
    const CodecBits now = codec.bits(link);
    int fewer = 0;
    for (const int choice : now.choices) {
      if (choice <= now.bits / 2) fewer = choice;
    }
    if (fewer == 0) continue;
    std::optional<double> average;
    if (now.average > fewer) average = fewer;
    link = codec.with_bits(link, fewer, average);
    any = true;
  }
  if (!any) return std::nullopt;
  return Treatment(std::move(changed));
}

}  // namespace compact
