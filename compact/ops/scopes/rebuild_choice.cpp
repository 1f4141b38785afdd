// SPDX-License-Identifier: Apache-2.0
// The part of Rebuild that chooses: what would be held so that a node can be made again, and
// whether that is worth its bytes and its work.
#include <algorithm>
#include <utility>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {
namespace {

constexpr int kFarthest = 60;  // operations from what is held to what is rebuilt of it

// The type of an element's parts: a complex one's are floats.
at::ScalarType parts_of(at::ScalarType type) {
  return at::isComplexType(type) ? at::toRealValueType(type) : type;
}

}  // namespace

void add_roots(Roots& all, const Roots& more) {
  for (const TapeNode* const one : more) {
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  }
}

int64_t Rebuild::bytes_to_hold(const TapeNode& n) const {
  const bool rounded = n.how.content() == Content::kRounded;
  if (has_codes(n) && !(exact_ && rounded)) return n.coded_bytes;
  const bool shared = n.memory ? n.memory.use_count() > 1 : original(n) != nullptr;
  return shared ? 0 : n.bytes;
}

bool is_read_in_parts(const Geometry& as, const TapeNode& n) {
  return parts_of(as.type) == parts_of(n.geometry.type);
}

bool Rebuild::is_steady(const TapeNode& n) const {
  return !options_.rounds || n.free || n.exact || n.bytes <= options_.least ||
         !at::isFloatingType(parts_of(n.geometry.type));
}

RoundedInputs Rebuild::rounded_of(const Record& record) const {
  RoundedInputs all;
  for (const Record::Input& input : record.inputs) {
    const auto& made_by = input.node->record;
    if (!is_steady(*input.node))
      all.push_back({input.argument, made_by ? made_by->signs : uint8_t{kPlain}});
  }
  return all;
}

bool Rebuild::has_codes(const TapeNode& n) const {
  return n.coded_bytes >= 0 && !(n.exact && n.how.content() == Content::kRounded);
}

bool Rebuild::needs_exact(const TapeNode& n, const Record& record) const {
  const auto other_bits = [](const Record::Input& input) {
    return !is_read_in_parts(input.geometry, *input.node);
  };
  return options_.rounds &&
         (n.exact || n.strict || !record.smooth || !at::isFloatingType(parts_of(n.geometry.type)) ||
          std::ranges::any_of(record.inputs, other_bits));
}

Roots Rebuild::roots_of(const TapeNode& n) const {
  if (n.count > 0 && n.mode == TapeNode::Mode::kRecipe) return n.roots;
  return is_steady(n) ? Roots() : Roots{&n};
}

// The nodes to hold so that the inputs of its operation can be made.
Rebuild::Choice Rebuild::inputs_of(const TapeNode& n, const Record& record, Memo& memo, int depth) {
  const Within exact(exact_, exact_ || needs_exact(n, record));
  Choice sum{.possible = true, .work = static_cast<double>(record.traffic)};
  for (const Record::Input& input : record.inputs) {
    const Choice one = best(*input.node, memo, depth + 1);
    if (!one.possible) return {};
    sum.work += one.work;
    add_roots(sum.roots, one.roots);
    for (const auto& [held, bytes] : one.held) {
      auto known = std::ranges::find(sum.held, held, &Choice::Held::first);
      if (known == sum.held.end()) known = sum.held.insert(known, Choice::Held(held, 0));
      // One reader may take it rounded and another one exactly.
      sum.bytes += std::max<int64_t>(0, bytes - known->second);
      known->second = std::max(known->second, bytes);
    }
  }
  return sum;
}

bool Rebuild::is_worth(const TapeNode& n, const Record& record, const Choice& choice) const {
  const double moved = options_.gain * static_cast<double>(record.traffic);
  return choice.possible &&
         (letting_go_ || choice.work <= options_.most_work * static_cast<double>(n.bytes)) &&
         static_cast<double>(choice.bytes) + moved < static_cast<double>(bytes_to_hold(n));
}

// The nodes to hold so that this one can be made.
Rebuild::Choice Rebuild::best(TapeNode& n, Memo& memo, int depth) {
  if (n.free) return {.possible = n.is_there()};
  // If the unneeded part of its storage was overwritten, only the needed part is this node's.
  const bool held = n.count > 0 && n.mode == TapeNode::Mode::kHeld && !n.codes.defined();
  const bool whole = held && n.own ? !n.partial : n.is_there() && !n.is_foreign();
  Roots roots = roots_of(n);
  if (n.count > 0 && (!exact_ || roots.empty())) {
    return {.possible = whole || !held,
            .work = n.mode == TapeNode::Mode::kRecipe ? n.work : 0,
            .roots = std::move(roots)};
  }
  if (const auto known = memo[exact_].find(&n); known != memo[exact_].end()) return known->second;
  Choice choice;
  // Others may have it rounded, but it is still there as it was made.
  if (whole && (n.count > 0 || !n.external || n.leaf || n.bytes <= options_.least)) {
    choice.possible = true;
    choice.bytes = held ? 0 : bytes_to_hold(n) - (n.codes.defined() ? n.held_bytes : 0);
    choice.held = {{&n, choice.bytes}};
    if (!exact_) choice.roots = std::move(roots);
  }
  if (may_run(n.record) && !n.pinned && depth < kFarthest &&
      (n.bytes > options_.least || !choice.possible)) {
    const Choice again = inputs_of(n, *n.record, memo, depth);
    const bool affordable =
        again.possible &&
        (letting_go_ || again.work <= options_.most_work * static_cast<double>(n.bytes));
    if (choice.possible ? is_worth(n, *n.record, again) && is_near(again) : affordable) {
      choice = again;
    }
  }
  memo[exact_].emplace(&n, choice);
  return choice;
}

std::optional<int64_t> Rebuild::recipe_bytes(TapeNode& n,
                                             const std::shared_ptr<const Record>& record,
                                             Need need) {
  if (n.count > 0 && (need == Need::kNear || roots_of(n).empty())) return 0;
  if (n.count > 0 || !may_run(record) || n.pinned) return std::nullopt;
  const Within exact(exact_, options_.rounds && need != Need::kNear);
  Memo memo;
  const Choice again = inputs_of(n, *record, memo, 0);
  if (!is_worth(n, *record, again) || !is_near(again)) return std::nullopt;
  return again.bytes;
}

void Rebuild::decide_again(TapeNode& n) {
  if (n.count == 0 || n.mode != TapeNode::Mode::kHeld || !n.record || n.record->heavy || n.pinned ||
      closed_ || n.bytes <= options_.least) {
    return;
  }
  const Within cheap(letting_go_, false);
  const Within near(exact_, false);
  Memo memo;
  const Choice again = inputs_of(n, *n.record, memo, 0);
  // Tensors rebuilt from it have no more errors then.
  const bool apart = n.apart.rows < 2 || can_part_inputs(n, n.apart);
  if (is_worth(n, *n.record, again) && again.roots.size() <= 1 && !spans_much(n, again) && apart) {
    let_go(n);
  }
}

}  // namespace compact
