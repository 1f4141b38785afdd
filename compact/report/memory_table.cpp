// SPDX-License-Identifier: Apache-2.0
#include "compact/report/memory_table.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/numbered_name.h"
#include "compact/base/ranges.h"
#include "compact/base/text.h"

namespace compact {

namespace {

std::string in_any_layer(const std::string& name) { return NumberedName(name).general(); }

// layer2.*.conv1 -> layer*.*.conv1
std::string in_any_stage(const std::string& name) {
  const std::string layer = in_any_layer(name);
  const size_t dot = layer.find(".*.");
  const size_t end = dot == layer.npos ? dot : layer.find_last_not_of("0123456789", dot - 1);
  if (end == layer.npos || end + 1 == dot) return layer;
  return layer.substr(0, end + 1) + "*" + layer.substr(dot);
}

// layer1.0.bn1~1.relu_.result@2 -> relu_.result
std::string operation_and_place(const std::string& name) {
  const std::string plain = name.substr(0, name.find('@'));
  const size_t place = plain.rfind('.');
  const size_t operation =
      place == plain.npos || place == 0 ? plain.npos : plain.rfind('.', place - 1);
  return operation == plain.npos ? plain : plain.substr(operation + 1);
}

// Names the layers of slots that are not treated alike in all layers: layers.*.mlp.norm ->
// layers.{0..5}.mlp.norm; of all stages layer*.*.conv1 -> layer*.*.conv1 (4 of 9).
void name_layers(std::vector<SlotBytes>& kinds, const std::vector<SlotBytes>& slots) {
  const std::vector<SlotBytes> all = kinds;
  for (SlotBytes& kind : kinds) {
    const auto same = [&](const SlotBytes& k) { return k.name == kind.name; };
    const size_t star = kind.name.find(".*.");
    if (star == kind.name.npos || std::ranges::count_if(all, same) < 2) continue;
    std::vector<std::string> layers;
    for (const SlotBytes& slot : slots) {
      if (slot.treatment == kind.treatment && in_any_layer(slot.name) == kind.name) {
        layers.push_back(NumberedName(slot.name).number);
      }
    }
    if (!layers.empty()) {
      kind.name.replace(star + 1, 1, braced(layers));
      continue;
    }
    const auto of_all = [&](const SlotBytes& slot) { return in_any_stage(slot.name) == kind.name; };
    const auto of_these = [&](const SlotBytes& slot) {
      return of_all(slot) && slot.treatment == kind.treatment;
    };
    kind.name += cat(" (", std::ranges::count_if(slots, of_these), " of ",
                     std::ranges::count_if(slots, of_all), ")");
  }
}

template <class F>
std::vector<SlotBytes> grouped(const std::vector<SlotBytes>& slots, F kind_of) {
  std::vector<SlotBytes> kinds;
  for (const SlotBytes& slot : slots) {
    const std::string name = kind_of(slot.name);
    auto kind = std::ranges::find_if(
        kinds, [&](const SlotBytes& k) { return k.name == name && k.treatment == slot.treatment; });
    if (kind == kinds.end()) kind = kinds.insert(kind, SlotBytes{name, slot.treatment, 0, 0});
    kind->stored += slot.stored;
    kind->if_kept += slot.if_kept;
  }
  return kinds;
}

}  // namespace

std::vector<SlotBytes> by_kind(const std::vector<SlotBytes>& slots) {
  constexpr size_t kMost = 24;
  std::vector<SlotBytes> kinds;
  for (const auto kind_of : {in_any_layer, in_any_stage, operation_and_place}) {
    kinds = grouped(slots, kind_of);
    if (kinds.size() <= kMost) break;
  }
  name_layers(kinds, slots);
  return kinds;
}

int64_t stored_bytes(const std::vector<SlotBytes>& slots) {
  int64_t sum = 0;
  for (const SlotBytes& s : slots) sum += s.stored;
  return sum;
}

std::string saved_line(const std::vector<SlotBytes>& slots) {
  const int64_t stored = stored_bytes(slots);
  int64_t kept = 0;
  for (const SlotBytes& s : slots) kept += s.if_kept;
  return cat("saved    ", format_bytes(stored), " for the backward pass",
             stored == kept ? "" : cat(", ", format_bytes(kept), " if all were kept as it is"));
}

std::string slot_table(const std::vector<SlotBytes>& slots) {
  std::string out;
  const std::vector<SlotBytes> kinds = by_kind(slots);
  size_t name = 24, width = 18;
  for (const SlotBytes& k : kinds) {
    name = std::max(name, k.name.size());
    width = std::max(width, k.treatment.size());
  }
  const auto row = [&](const std::string& a, const std::string& b, const std::string& c,
                       const std::string& d) {
    const auto pad = [](const std::string& text, size_t to) {
      return std::string(to - std::min(to, text.size()), ' ');
    };
    out += cat("  ", a, pad(a, name), " ", b, pad(b, width), " ", pad(c, 12), c, " ", pad(d, 12), d,
               "\n");
  };
  row("saved tensor", "treatment", "stored", "if kept");
  int64_t kept = 0;
  for (const SlotBytes& kind : kinds) {
    row(kind.name, kind.treatment, format_bytes(kind.stored), format_bytes(kind.if_kept));
    kept += kind.if_kept;
  }
  row("sum", "", format_bytes(stored_bytes(slots)), format_bytes(kept));
  return out;
}

}  // namespace compact
