// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy.h"

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/named.h"
#include "compact/base/ranges.h"
#include "compact/base/text.h"
#include "compact/ops/treatments.h"

namespace compact {
namespace {

constexpr std::array<const char*, 3> kKinds = {"slot", "grad", "moment"};

PolicyKind kind_of(std::string_view word, const std::string& where) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (word == kKinds[i]) return static_cast<PolicyKind>(i);
  }
  const std::vector<std::string> known(kKinds.begin(), kKinds.end());
  fail(where, ": a policy line starts with slot, grad or moment, got `", word, "`",
       suggestion(word, known));
}

}  // namespace

Policy Policy::parse(std::string_view text, const std::string& source) {
  Policy policy;
  int number = 0;
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
                  ": expected `slot|grad|moment PATTERN = TREATMENT`, got `", line, "`");
    Line l{.kind = kind_of(line.substr(0, space), where),
           .pattern = std::string(trim(line.substr(space, equals - space))),
           .treatment = {},
           .where = where};
    COMPACT_CHECK(!l.pattern.empty() && l.pattern.find_first_of(" \t") == l.pattern.npos, where,
                  ": one pattern before `=`, got `", l.pattern, "`");
    check_ranges(l.pattern, where);
    try {
      l.treatment = Spec::parse_chain(line.substr(equals + 1));
      check_treatment(l.kind, l.treatment);
    } catch (const InputError& e) {
      fail(where, ": ", e.what());
    }
    for (const Line& other : policy.lines_) {
      COMPACT_CHECK(
          other.kind != l.kind || other.pattern != l.pattern || other.treatment == l.treatment,
          where, ": `", l.pattern, "` is given `", Spec::chain_str(l.treatment), "` here and `",
          Spec::chain_str(other.treatment), "` at ", other.where);
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
  return parse(read_text(path, int64_t{1} << 20), path);
}

void Policy::append(const Policy& other) {
  lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end());
}

std::vector<Spec> Policy::find(PolicyKind kind, std::string_view name) const {
  for (auto line = lines_.rbegin(); line != lines_.rend(); ++line) {
    if (line->kind == kind && glob_match(line->pattern, name)) return line->treatment;
  }
  Spec none;
  if (kind == PolicyKind::kSlot) none.name = "keep";
  if (kind == PolicyKind::kGrad) none.name = "full";
  return {none};
}

bool Policy::has(PolicyKind kind) const {
  return std::ranges::any_of(lines_, [&](const Line& l) { return l.kind == kind; });
}

bool Policy::names(PolicyKind kind, std::string_view name) const {
  return std::ranges::any_of(
      lines_, [&](const Line& l) { return l.kind == kind && glob_match(l.pattern, name); });
}

std::optional<int64_t> Policy::fewest_open_bits() const {
  std::optional<int64_t> fewest;
  for (const Line& line : lines_) {
    const Spec& first = line.treatment[0];
    if (line.kind != PolicyKind::kSlot || !first.has("adapt")) continue;
    const int64_t bits = first.integer("bits", 4);
    COMPACT_CHECK(first.number("adapt", 4) <= static_cast<double>(bits), line.where, ": slot `",
                  line.pattern, "` = ", first.str(),
                  ": adapt must be at most bits, which plans count on");
    fewest = std::min(fewest.value_or(8), bits);
  }
  return fewest;
}

bool Policy::halve_bits() {
  bool any = false;
  for (Line& line : lines_) {
    if (line.kind != PolicyKind::kSlot) continue;
    for (Spec& link : line.treatment) {
      const int64_t bits = link.name == "quantize" ? link.integer("bits", 4) : 1;
      if (bits < 2) continue;
      any = true;
      link.set("bits", cat(bits / 2));
      if (link.number("adapt", 0) > static_cast<double>(bits / 2)) link.set("adapt", cat(bits / 2));
    }
  }
  return any;
}

int Policy::override_projection(std::string_view key, std::string_view value) {
  int changed = 0;
  for (Line& line : lines_) {
    if (line.kind != PolicyKind::kGrad || line.treatment[0].name != "project") continue;
    line.treatment[0].set(key, value);
    check_treatment(line.kind, line.treatment);
    ++changed;
  }
  return changed;
}

bool Policy::sets_projection(std::string_view key, std::string_view value) const {
  for (const Line& line : lines_) {
    if (line.kind == PolicyKind::kGrad && line.treatment[0].has(key) &&
        line.treatment[0].text(key, "") != value) {
      return true;
    }
  }
  return false;
}

void Policy::check_patterns(PolicyKind kind, std::span<const std::string> names) const {
  // A preset for other networks would do nothing and say nothing.
  const Line* idle = nullptr;
  bool works = kind != PolicyKind::kSlot;
  for (const Line& line : lines_) {
    if (line.kind != kind || !line.general) continue;
    idle = &line;
    for (const std::string& name : names) works = works || glob_match(line.pattern, name);
  }
  if (idle && !works) fail(idle->where, ": no slot of this model is in the preset");
  for (const Line& line : lines_) {
    if (line.kind != kind || line.general) continue;
    bool any = false;
    for (const std::string& name : names) any = any || glob_match(line.pattern, name);
    if (any) continue;
    // Suggest with the layer number as a star, as people write patterns.
    std::vector<std::string> general;
    for (const std::string& name : names) {
      std::vector<std::string> parts = split(name, '.');
      if (parts.size() > 1 && parse_integer(parts[1])) parts[1] = "*";
      std::string joined = parts[0];
      for (size_t i = 1; i < parts.size(); ++i) joined += "." + parts[i];
      if (std::find(general.begin(), general.end(), joined) == general.end())
        general.push_back(joined);
    }
    fail(line.where, ": pattern `", line.pattern, "` matches no ", kKinds[static_cast<int>(kind)],
         " of this model", suggestion(line.pattern, general));
  }
}

std::string Policy::str() const {
  std::string out;
  for (const Line& line : lines_) {
    out += std::string(kKinds[static_cast<int>(line.kind)]) + " " + line.pattern + " = " +
           Spec::chain_str(line.treatment) + "\n";
  }
  return out;
}

}  // namespace compact
