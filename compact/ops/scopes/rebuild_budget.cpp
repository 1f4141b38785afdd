// SPDX-License-Identifier: Apache-2.0
// Rebuild's third part: a budget of bytes. Online and greedy by time for a byte, as in DTR
// (Kirisame et al. 2021), but the bytes that are rebuilt at a time limit which tensors are dropped,
// and none is dropped in the backward pass.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {
namespace {

constexpr double kMostSpan = 0.8;  // of the budget
constexpr int64_t kParts = 64;     // of the budget, one of which is freed at a time
constexpr int64_t kPaths = 3;      // parts of the budget as long as which a path may be

}  // namespace

void Rebuild::note_reach(TapeNode& n, const Record& record) const {
  const TapeNode *near = nullptr, *far = nullptr;
  for (const Record::Input& input : record.inputs) {
    const TapeNode& m = *input.node;
    if (m.free || m.bytes <= options_.least) continue;
    if (!record.heavy && !m.sum.expired()) n.sum = m.sum;
    if (!near || m.reach < near->reach) near = &m;
    if (!far || m.reach > far->reach) far = &m;
  }
  n.reach = n.bytes + (far ? far->reach : 0);
  n.products = (record.heavy ? 1 : 0) + (far ? far->products : 0);
  if (near != far && near->grad && far->reach - near->reach >= 2 * n.bytes &&
      far->products != near->products) {
    n.sum = n.weak_from_this();
  }
}

void Rebuild::cut(TapeNode& n) {
  const TapeNodePtr sum = n.sum.lock();
  if (!sum || budget_ <= 0 || n.reach <= budget_ / kPaths || sum->pinned) return;
  if (sum->mode == TapeNode::Mode::kRecipe) return;
  TapeNode& held = sum->bytes <= n.bytes && sum->is_there() ? *sum : n;
  if (held.mode == TapeNode::Mode::kRecipe || !held.is_there()) return;
  held.pinned = true;
  if (&held != &n && n.reach >= held.reach && n.depth >= held.depth) {  // which goes on from there
    n.reach -= held.reach;
    n.depth -= held.depth;
  }
  held.reach = held.depth = 0;
}

// Peak bytes alive while the node is rebuilt: its inputs, tensors rebuilt from it, and other saved
// inputs of the operations that read them. A tensor with one reader lives only while that reader
// runs.
int64_t Rebuild::span_of(TapeNode& n, const Choice& choice, int64_t enough) const {
  std::unordered_set<const TapeNode*> seen{&n};
  std::vector<std::pair<const TapeNode*, bool>> left{{&n, true}};
  const auto stays = [](const TapeNode& m) {
    if (m.handles > 0 || m.count > 0) return m.handles > 0 || m.count > 1;
    return std::ranges::count_if(m.follow, [](const auto& weak) {
             const TapeNodePtr f = weak.lock();
             return f && f->record && (f->count == 0 || f->mode == TapeNode::Mode::kRecipe);
           }) > 1;
  };
  int64_t sum = stays(n) ? n.bytes : 0;
  const auto visit = [&](const TapeNode& m, bool made_of_it) {
    const bool unneeded =
        m.count == 0 && !m.free && m.record &&
        std::ranges::find(choice.held, &m, &Choice::Held::first) == choice.held.end();
    if (m.mode != TapeNode::Mode::kRecipe && !(unneeded && !made_of_it)) return;
    if (!seen.insert(&m).second) return;
    if (stays(m)) sum += m.bytes;
    left.emplace_back(&m, made_of_it);
  };
  while (!left.empty() && sum <= enough) {
    const auto [m, made_of_it] = left.back();
    left.pop_back();
    for (const Record::Input& input : m->record->inputs) visit(*input.node, false);
    if (made_of_it) {
      for (const auto& weak : m->follow) {
        if (const TapeNodePtr follower = weak.lock()) visit(*follower, true);
      }
    }
    for (const uint64_t reader : m->readers) {
      const auto saved = saved_by_.find(reader);
      if (saved == saved_by_.end()) continue;
      for (const auto& weak : saved->second) {
        const TapeNodePtr beside = weak.lock();
        if (beside && beside->mode == TapeNode::Mode::kRecipe) visit(*beside, false);
      }
    }
  }
  if (sum > enough) return sum;
  // The most bytes that live while one of them is made, beside those that stay.
  std::unordered_map<const TapeNode*, int64_t> known;
  const auto passing = [&](const auto& self, const TapeNode& m) -> int64_t {
    const auto [at, is_new] = known.try_emplace(&m, 0);
    if (!is_new) return at->second;
    int64_t inputs = 0, most = 0;
    for (const Record::Input& input : m.record->inputs) {
      if (!seen.contains(input.node.get())) continue;
      most = std::max(most, inputs + self(self, *input.node));  // what was made before it waits
      if (!stays(*input.node)) inputs += input.node->bytes;
    }
    most = std::max(most, inputs + (stays(m) ? 0 : m.bytes));
    return known[&m] = most;
  };
  int64_t most = 0;
  for (const TapeNode* const m : seen) most = std::max(most, passing(passing, *m));
  return sum + most;
}

bool Rebuild::spans_much(TapeNode& n, const Choice& choice) const {
  if (!options_.budgeted || letting_go_ || !n.is_there()) return false;
  const int64_t most = std::max({most_span_, span_, budget_ / 16});
  return span_of(n, choice, most) > most;
}

std::optional<Rebuild::Offer> Rebuild::offer(const TapeNodePtr& n) {
  if (!n || n->count == 0 || n->mode != TapeNode::Mode::kHeld || !n->record || n->pinned ||
      n->bytes <= options_.least || (n->memory && n->memory.use_count() > 1)) {
    return std::nullopt;
  }
  // Another stream may not have made yet what would be held in its place.
  if (n->memory && n->stream != stream_of(n->memory->storage.device())) return std::nullopt;
  Memo memo;
  for (auto& known : memo) known.emplace(n.get(), Choice());  // it is not made of itself
  const Choice again = inputs_of(*n, *n->record, memo, 0);
  const int64_t freed = n->held_bytes - again.bytes;
  if (!again.possible || freed <= 0) return std::nullopt;
  const int64_t span = span_of(*n, again, most_span_);
  if (span > most_span_) return std::nullopt;
  return Offer{again.work / static_cast<double>(freed), freed, span, n};
}

std::vector<Rebuild::Offer> Rebuild::offers() {
  std::vector<Offer> all;
  for (const auto& weak : held_) {
    if (auto one = offer(weak.lock())) all.push_back(*std::move(one));
  }
  std::ranges::sort(all, {}, &Offer::span);
  size_t count = 0;
  int64_t freed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    freed += all[i].freed;
    if (freed > all[i].span - span_) count = i + 1;
  }
  all.resize(count);
  std::ranges::sort(all, {}, &Offer::cost);
  return all;
}

bool Rebuild::keep_within(int64_t budget) {
  budget_ = budget;
  const auto over = [&] { return live_->bytes() - freeing_ + span_ - budget; };
  if (closed_ || over() <= 0) return true;
  const auto held = std::pair(live_->bytes() - freeing_ - budget, held_.size());
  if (held == tried_) return false;
  most_span_ = std::max(most_span_, budget / 16);
  const Within letting_go(letting_go_, true);
  while (over() > 0) {
    const std::vector<Offer> found = offers();
    if (found.empty()) {
      const auto most = static_cast<int64_t>(kMostSpan * static_cast<double>(budget));
      if (most_span_ >= most) break;
      most_span_ = std::min(most_span_ + most_span_ / 4 + 1, most);
      continue;
    }
    const int64_t enough = -budget / kParts;
    for (const Offer& one : found) {
      if (over() <= enough) break;
      // Nodes dropped before may have changed this offer.
      const std::optional<Offer> now = offer(one.node);
      if (!now) continue;
      span_ = std::max(span_, now->span);
      let_go(*one.node);
    }
  }
  if (over() > 0) tried_ = {live_->bytes() - freeing_ - budget, held_.size()};
  return over() <= 0;
}

}  // namespace compact
