// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy/policy.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/named.h"
#include "compact/base/numbered_name.h"
#include "compact/base/ranges.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr std::string_view kRole = "role:", kByteOrderMark = "\xEF\xBB\xBF";

PolicyKind kind_of(std::string_view word, const std::string& where) {
  for (size_t i = 0; i < kPolicyKinds.size(); ++i) {
    if (word == kPolicyKinds[i]) return static_cast<PolicyKind>(i);
  }
  const std::vector<std::string> known(kPolicyKinds.begin(), kPolicyKinds.end());
  fail(where, ": a policy line starts with slot, grad, moment or weight, got `", word, "`",
       suggestion(word, known));
}

void check_budget(const std::vector<Role>& roles, const Treatment& slot) {
  const bool heavy = std::ranges::find(roles, Role::kHeavy) != roles.end();
  COMPACT_CHECK(!heavy || roles.size() == 1, "role:heavy must be in a line of its own");
  const bool budget = static_cast<bool>(budget_of(slot.first()));
  COMPACT_CHECK(heavy == budget || slot.storage() == Storage::kKeep,
                heavy ? "role:heavy is `keep`, or has a budget, as `recompute:budget=10GiB` or "
                        "`recompute:budget=40%`"
                      : "budgets are for `slot role:heavy`");
}

}  // namespace

Policy Policy::parse(std::string_view text, const std::string& source) {
  Policy policy;
  int number = 0;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (const std::string& raw : split(text, '\n')) {
    ++number;
    const std::string where = source + ":" + std::to_string(number);
    const std::string_view whole = trim(raw);
    if (whole.starts_with("#") && policy.lines_.empty()) {
      policy.summary_ += (policy.summary_.empty() ? "" : " ") + std::string(trim(whole.substr(1)));
    }
    const std::string_view line = trim(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;
    const size_t space = line.find_first_of(" \t"), equals = line.find('=');
    COMPACT_CHECK(space != line.npos && equals != line.npos && space < equals, where,
                  ": expected `slot|grad|moment|weight PATTERN = TREATMENT`, got `", line, "`");
    Line l{.kind = kind_of(line.substr(0, space), where),
           .pattern = std::string(trim(line.substr(space, equals - space))),
           .where = where};
    COMPACT_CHECK(!l.pattern.empty() && l.pattern.find_first_of(" \t") == l.pattern.npos, where,
                  ": one pattern before `=`, got `", l.pattern, "`");
    check_ranges(l.pattern, where);
    try {
      std::vector<Spec> chain = Spec::parse_chain(line.substr(equals + 1));
      if (l.pattern.starts_with(kRole)) {
        COMPACT_CHECK(l.kind == PolicyKind::kSlot, "`", l.pattern, "`: slots alone have roles");
        l.roles = parse_roles(l.pattern.substr(kRole.size()));
      }
      if (l.kind == PolicyKind::kSlot) {
        l.slot = Treatment(std::move(chain));
        check_budget(l.roles, l.slot);
      } else {
        check_treatment(l.kind, chain);
        if (l.kind == PolicyKind::kGrad) {
          l.grad = std::move(chain[0]);
        } else {
          l.other = Spec::chain_str(chain);
        }
      }
    } catch (const InputError& e) {
      fail(where, ": ", e.what());
    }
    for (const Line& other : policy.lines_) {
      const bool same = other.kind == l.kind && other.roles == l.roles &&
                        (!l.roles.empty() || other.pattern == l.pattern);
      COMPACT_CHECK(!same || other.treatment() == l.treatment(), where, ": `", l.pattern,
                    "` is given `", l.treatment(), "` here and `", other.treatment(), "` at ",
                    other.where);
    }
    policy.lines_.push_back(std::move(l));
  }
  return policy;
}

Policy Policy::preset(const std::string& name) {
  Policy policy = parse(named(embedded_presets(), name, "no preset").text, "preset " + name);
  policy.make_general();
  return policy;
}

Policy Policy::from_file(const std::string& path) {
  Policy policy = parse(read_text(path, int64_t{1} << 20), path);
  policy.make_copies_general();
  return policy;
}

void Policy::make_copies_general() {
  std::string copied = "\n";
  for (const EmbeddedPreset& preset : embedded_presets())
    copied += Policy::preset(preset.name).str();
  for (Line& line : lines_) line.general |= copied.find(cat("\n", line.text())) != copied.npos;
}

void Policy::append(const Policy& other) {
  lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end());
}

std::string Policy::Line::treatment() const {
  return kind == PolicyKind::kSlot ? slot.text() : kind == PolicyKind::kGrad ? grad.str() : other;
}

std::string Policy::Line::text() const {
  return cat(name_of(kind), " ", pattern, " = ", treatment(), "\n");
}

bool Policy::Line::matches(std::string_view name, Role role) const {
  return roles.empty() ? glob_match(pattern, name) : std::ranges::find(roles, role) != roles.end();
}

const Policy::Line* Policy::find(PolicyKind kind, std::string_view name, Role role) const {
  for (auto line = lines_.rbegin(); line != lines_.rend(); ++line) {
    if (line->kind == kind && line->matches(name, role)) return &*line;
  }
  return nullptr;
}

Treatment Policy::slot(std::string_view name, Role role) const {
  const Line* const line = find(PolicyKind::kSlot, name, role);
  if (!line) return Treatment();
  const bool plain = role == Role::kCheap || role == Role::kHeavy;
  return plain && line->slot.tile() > 0 ? Treatment::parse("recompute") : line->slot;
}

Spec Policy::grad(std::string_view name) const {
  const Line* const line = find(PolicyKind::kGrad, name);
  return line ? line->grad : Spec{.name = "full", .values = {}};
}

std::string Policy::moment(std::string_view name) const {
  const Line* const line = find(PolicyKind::kMoment, name);
  return line ? line->other : std::string();
}

MemoryPlace Policy::weight(std::string_view name) const {
  const Line* const line = find(PolicyKind::kWeight, name);
  return memory_place(line && line->other != "keep" ? line->other : "");
}

bool Policy::has(PolicyKind kind) const {
  return std::ranges::any_of(lines_, [&](const Line& l) { return l.kind == kind; });
}

bool Policy::names(PolicyKind kind, std::string_view name, Role role) const {
  return find(kind, name, role) != nullptr;
}

bool Policy::keeps_all() const {
  return std::ranges::all_of(lines_, [](const Line& line) {
    return line.kind != PolicyKind::kSlot || line.slot.storage() == Storage::kKeep;
  });
}

bool Policy::rounds() const {
  return std::ranges::any_of(lines_, [](const Line& line) {
    return line.kind == PolicyKind::kSlot && line.slot.content() == Content::kRounded;
  });
}

std::optional<int64_t> Policy::fewest_open_bits() const {
  std::optional<int64_t> fewest;
  for (const Line& line : lines_) {
    const std::optional<CodecBits> b = line.slot.bits();
    if (!b || !b->average) continue;
    COMPACT_CHECK(*b->average <= b->bits, line.where, ": slot `", line.pattern,
                  "` = ", line.slot.first().str(),
                  ": adapt must be at most bits, which plans count on");
    fewest = std::min<int64_t>(fewest.value_or(b->bits), b->bits);
  }
  return fewest;
}

bool Policy::halve_bits() {
  bool any = false;
  for (Line& line : lines_) {
    std::optional<Treatment> fewer = line.slot.halved();
    if (!fewer) continue;
    line.slot = *std::move(fewer);
    any = true;
  }
  return any;
}

int Policy::override_projection(std::string_view key, std::string_view value) {
  int changed = 0;
  for (Line& line : lines_) {
    if (line.kind != PolicyKind::kGrad || line.grad.name != "project") continue;
    line.grad.set(key, value);
    check_treatment(line.kind, {line.grad});
    ++changed;
  }
  return changed;
}

bool Policy::sets_projection(std::string_view key, std::string_view value) const {
  for (const Line& line : lines_) {
    if (line.kind == PolicyKind::kGrad && line.grad.has(key) && line.grad.text(key, "") != value) {
      return true;
    }
  }
  return false;
}

void Policy::check_patterns(PolicyKind kind, std::span<const NamedRole> all,
                            const char* among) const {
  const auto matched = [&](const Line& line) {
    return std::ranges::any_of(all,
                               [&](const NamedRole& n) { return line.matches(n.name, n.role); });
  };
  // A preset, or a copy, of which no line matches (one for other networks) would silently do
  // nothing.
  const auto works = [&](const Line& idle) {
    const auto source = [](const Line& l) { return l.where.substr(0, l.where.rfind(':')); };
    return kind != PolicyKind::kSlot || std::ranges::any_of(lines_, [&](const Line& l) {
             return l.kind == kind && l.general && source(l) == source(idle) && matched(l);
           });
  };
  if (kind == PolicyKind::kSlot) check_tiles(all);
  for (const Line& line : lines_) {
    if (line.kind != kind || matched(line)) continue;
    if (among && line.grad.name == "frozen") continue;
    if (line.general) {
      COMPACT_CHECK(works(line), line.where, ": no slot of this model is in the preset");
      continue;
    }
    const auto add = [](std::vector<std::string>& to, const std::string& name) {
      if (std::ranges::find(to, name) == to.end()) to.push_back(name);
    };
    std::vector<std::string> names, own_roles;
    for (const NamedRole& n : all) {
      add(names, NumberedName(n.name).general());
      if (n.role != Role::kNone) add(own_roles, name_of(n.role));
    }
    const std::string what = cat(line.where, ": pattern `", line.pattern, "` matches no ",
                                 name_of(kind), among ? among : " of this model");
    if (among) fail(what);
    if (line.roles.empty()) fail(what, suggestion(line.pattern, names));
    std::string roles = own_roles.empty() ? " none" : "";
    for (const std::string& role : own_roles) roles += " " + role;
    fail(what, "; its roles:", roles);
  }
}

void Policy::check_tiles(std::span<const NamedRole> all) const {
  for (const Line& line : lines_) {
    if (line.kind != PolicyKind::kSlot || line.slot.tile() == 0 || line.general) continue;
    const NamedRole* whole = nullptr;
    bool any = false;
    for (const NamedRole& n : all) {
      if (find(PolicyKind::kSlot, n.name, n.role) != &line) continue;
      any |= n.in_tiles;
      if (!whole && !n.name.empty()) whole = &n;
    }
    COMPACT_CHECK(any || !whole, line.where, ": slot `", line.pattern, "` = ", line.slot.text(),
                  ": `", whole ? whole->name : "",
                  "` cannot be made for some tokens at a time, nor anything else that this line "
                  "treats: `tile` is for what lies between two operations that treat tokens one by "
                  "one, as attention, sums and plain operations do not; give it `recompute`");
  }
}

std::string Policy::str() const {
  std::string out;
  for (const Line& line : lines_) out += line.text();
  return out;
}

}  // namespace compact
