// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/block_option.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/ranges.h"
#include "compact/plan/bits.h"

namespace compact {
namespace {

// "layers.3", "layers.{0..2,5}", or "layers.*" for all of `all` that begin so; one for each
// beginning.
std::vector<std::string> patterns_of(const std::vector<std::string>& names,
                                     const std::vector<std::string>& all) {
  const auto beginning = [](const std::string& name) {
    return name.substr(0, name.rfind('.') + 1);
  };
  std::vector<std::string> begun, patterns;
  for (const std::string& name : names) {
    const std::string b = beginning(name);
    if (std::ranges::find(begun, b) != begun.end()) continue;
    begun.push_back(b);
    const auto same = [&](const std::string& other) { return beginning(other) == b; };
    std::vector<std::string> ends;
    for (const std::string& other : names) {
      if (same(other)) ends.push_back(other.substr(b.size()));
    }
    const bool every =
        !b.empty() && static_cast<int64_t>(ends.size()) == std::ranges::count_if(all, same);
    patterns.push_back(b + (every ? "*" : braced(ends)));
  }
  return patterns;
}

}  // namespace

std::vector<BlockOption> recompute_options(const std::vector<std::string>& slots) {
  constexpr size_t kMost = 12;
  COMPACT_CHECK(slots.size() <= kMost, "[plan] a segment of ", slots.size(),
                " slots that may be rebuilt has too many ways, at most ", kMost, " are planned");
  std::vector<BlockOption> all(size_t{1} << slots.size());
  for (size_t mask = 0; mask < all.size(); ++mask) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (mask >> i & 1) all[mask].recomputed.push_back(slots[i]);
    }
  }
  return all;
}

double add_slots(BlockOption& option, const std::vector<SlotBytes>& slots,
                 const std::string& prefix) {
  option.bytes.saved = 0;  // extras included
  option.error = 0;
  double encoded = 0, kept = 0;
  for (const SlotBytes& slot : slots) {
    if (!slot.name.starts_with(prefix)) continue;
    option.bytes.saved += slot.stored;
    const auto elements = static_cast<double>(slot.if_kept);
    const std::string name = slot.name.substr(prefix.size());
    // Signs are exact.
    const bool values = !name.ends_with("extras") && !slot.treatment.starts_with("mask");
    if (values && slot.treatment != "recompute") kept += elements;
    for (const auto& [quantized, bits] : option.quantized) {
      if (quantized != name) continue;
      encoded += elements + static_cast<double>(slot.stored);
      option.error += rounding_error(bits) * elements;
    }
  }
  if (option.error > 0) option.error /= kept;
  return encoded;
}

std::vector<BlockOption> undominated(const std::vector<BlockOption>& all) {
  std::vector<LayerOption> bytes;
  for (const BlockOption& option : all) bytes.push_back(option.bytes);
  std::vector<BlockOption> kept;
  for (const int i : pareto(bytes)) kept.push_back(all[i]);
  return kept;
}

std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const BlockOption*>& options) {
  // Lines in the order first seen; those of whole segments stand below the others.
  struct Line {
    std::string slot, how;
    std::vector<std::string> names;
  };
  std::vector<Line> whole, quantized, recomputed;
  const auto add = [](std::vector<Line>& lines, const std::string& slot, const std::string& how,
                      const std::string& name) {
    for (Line& line : lines) {
      if (line.slot == slot && line.how == how) return line.names.push_back(name);
    }
    lines.push_back({slot, how, {name}});
  };
  for (size_t i = 0; i < options.size(); ++i) {
    const BlockOption& o = *options[i];
    if (o.all_bits > 0) add(whole, "*", cat("quantize:bits=", o.all_bits), names[i]);
    for (const auto& [slot, bits] : o.quantized) {
      if (bits != o.all_bits) add(quantized, slot, cat("quantize:bits=", bits), names[i]);
    }
    for (const std::string& slot : o.recomputed) add(recomputed, slot, "recompute", names[i]);
  }
  std::string text;
  for (const auto* lines : {&whole, &quantized, &recomputed}) {
    for (const Line& l : *lines) {
      for (const std::string& pattern : patterns_of(l.names, names)) {
        const bool all = pattern.ends_with("*") && l.slot == "*";
        text += cat("slot ", pattern, all ? "" : "." + l.slot, " = ", l.how, "\n");
      }
    }
  }
  return text;
}

}  // namespace compact
