// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "compact/base/philox.h"
#include "compact/ops/scopes/rebuild_impl.h"
#include "compact/ops/scopes/unseen_impl.h"

namespace compact {
namespace {

constexpr int kMostFollowers = 6;  // operations between an anchor and what is released for it

c10::Storage copy_of(const c10::Storage& storage) {
  const Unseen unseen;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return view_of(storage, Geometry::flat(at::kByte, bytes)).clone().storage();
}

bool is_finite(const at::Tensor& t) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, t.scalar_type(), "is_finite", [&] {
        const std::span all(t.const_data_ptr<scalar_t>(), static_cast<size_t>(t.numel()));
        return std::ranges::all_of(all,
                                   [](scalar_t x) { return std::isfinite(static_cast<float>(x)); });
      });
}

}  // namespace

bool lost_a_value(const Encoded& encoded) {
  return std::ranges::any_of(encoded.parts, [](const at::Tensor& part) {
    return at::isFloatingType(part.scalar_type()) && !is_finite(part);
  });
}

TapeNode::TapeNode(const at::Tensor& t, uint64_t made_in)
    : weak(t.storage().getWeakStorageImpl()),
      bytes(static_cast<int64_t>(t.storage().nbytes())),
      geometry(Geometry::of(t)),
      call(made_in),
      grad(t.requires_grad()) {
  watch(t);
}

void TapeNode::watch(const at::Tensor& t) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));  // where its number is kept
  const c10::VariableVersion& counter = t.unsafeGetTensorImpl()->version_counter();
  for (const Version& v : versions) {
    if (std::memcmp(static_cast<const void*>(&v.counter), static_cast<const void*>(&counter),
                    sizeof(counter)) == 0) {
      return;
    }
  }
  versions.push_back({counter, counter.current_version()});
}

bool TapeNode::is_there() const {
  const auto storage = weak.lock();
  return !stale && storage && static_cast<int64_t>(storage->nbytes()) == bytes;
}

bool TapeNode::is_foreign() const {
  const auto storage = weak.lock();
  return external && storage && !storage->resizable();
}

bool TapeNode::is_unwritten() const {
  return std::ranges::all_of(
      versions, [](const Version& v) { return v.version == v.counter.current_version(); });
}

void TapeNode::note_versions() {
  for (Version& v : versions) v.version = v.counter.current_version();
}

void TapeNode::add_follower(const TapeNodePtr& n) {
  if (follow.size() == follow.capacity()) {
    std::erase_if(follow, [](const auto& f) { return f.expired(); });
    follow.reserve(std::max<size_t>(4, 2 * follow.size()));
  }
  follow.push_back(n);
}

std::shared_ptr<HeldStorage> Rebuild::original(const TapeNode& n) const {
  const auto known = originals_.find(n.weak._unsafe_get_target());
  return known == originals_.end() ? nullptr : known->second.lock();
}

std::shared_ptr<HeldStorage> Rebuild::own(c10::Storage storage) const {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return std::make_shared<HeldStorage>(std::move(storage), bytes, live_);
}

void Rebuild::keep_original(TapeNode& n) {
  n.memory = original(n);
  // Memory made elsewhere counts only as far as this tensor shows it.
  const int64_t bytes = n.external ? std::min(n.geometry.bytes(), n.bytes) : n.bytes;
  n.held_bytes = n.memory || n.free ? 0 : bytes;
  if (!n.memory) {
    n.memory = std::make_shared<HeldStorage>(c10::Storage(n.weak.lock()), n.held_bytes, live_);
    originals_[n.weak._unsafe_get_target()] = n.memory;
  }
  auto& users = n.memory->users;
  std::erase_if(users, [&](const auto& user) { return user.expired() || user.lock().get() == &n; });
  users.push_back(n.weak_from_this());
}

// Holds the node in the form that its readers need now, codes or another.
void Rebuild::hold_again(TapeNode& n) {
  const Within row(row_, n.row);
  if (n.mode == TapeNode::Mode::kRecipe) {
    release_inputs(n);
  } else {
    rows_[n.row].stored -= n.held_bytes;
    drop(n);
  }
  hold(n);
}

void Rebuild::save(TapeNode& n, size_t row, bool whole, uint64_t reader, Need need) {
  row_ = row;
  if (options_.budgeted && std::ranges::find(n.readers, reader) == n.readers.end()) {
    n.readers.push_back(reader);
    saved_by_[reader].push_back(n.weak_from_this());
  }
  n.pinned |= whole;
  if (options_.budgeted) cut(n);
  if (!n.saved) {
    if (n.count > 0) {
      rows_[n.row].stored -= n.held_bytes;
      rows_[row_].stored += n.held_bytes;
      rows_[row_].recipe = n.mode == TapeNode::Mode::kRecipe;
    }
    n.saved = true;
    n.row = row_;
  }
  if (options_.rounds && !n.free) {
    const bool recipe = n.mode == TapeNode::Mode::kRecipe && !n.roots.empty();
    if (recipe && need == Need::kExact) make_exact(n);
    n.exact |= need == Need::kExact;
    n.strict |= need != Need::kNear;
    const bool coded = n.mode == TapeNode::Mode::kHeld && n.codes.defined() != has_codes(n);
    if (coded || (recipe && need == Need::kSigns)) hold_again(n);
  }
  ++n.handles;
  if (n.external && n.count == 0) {
    n.count = 1;
    hold(n);
  } else {
    retain(n);
  }
}

void Rebuild::make_exact(TapeNode& n) {
  if (n.free || roots_of(n).empty()) return;
  const Within exact(exact_, true);
  const Within row(row_, n.row);
  Memo memo;
  const Choice choice = best(n, memo, 0);
  TORCH_INTERNAL_ASSERT(choice.possible, "a rounded tensor is neither there nor can be rebuilt");
  const bool recipe = n.mode == TapeNode::Mode::kRecipe;
  if (choice.holds(n)) {
    n.exact = true;
    if (recipe || n.codes.defined()) hold_again(n);
    return;
  }
  if (!recipe) {
    rows_[n.row].stored -= n.held_bytes;
    drop(n);
  }
  make_recipe(n);
  if (recipe) release_inputs(n);  // of the recipe before
}

void Rebuild::retain(TapeNode& n) {
  if (++n.count > 1) {
    if (exact_) make_exact(n);
    return;
  }
  if (n.free) {
    keep_original(n);
    return;
  }
  n.count = 0;
  Memo memo;
  const Choice choice = best(n, memo, 0);
  n.count = 1;
  TORCH_INTERNAL_ASSERT(choice.possible, "a saved tensor is neither there nor can be rebuilt");
  if (!n.saved) n.row = row_;
  if (choice.holds(n) || spans_much(n, choice)) {
    n.exact |= exact_ && !is_steady(n);
    hold(n);
  } else {
    make_recipe(n);
  }
}

void Rebuild::make_recipe(TapeNode& n) {
  n.mode = TapeNode::Mode::kRecipe;
  n.partial = false;
  n.work = static_cast<double>(n.record->traffic);
  n.roots.clear();
  if (n.saved) rows_[n.row].recipe = true;
  const Within exact(exact_, exact_ || needs_exact(n, *n.record));
  for (const Record::Input& input : n.record->inputs) {
    retain(*input.node);
    add_roots(n.roots, roots_of(*input.node));
    if (input.node->mode == TapeNode::Mode::kRecipe) n.work += input.node->work;
  }
  part_inputs(n);
  if (options_.budgeted) span_ = std::max(span_, span_of(n, {}, budget_));
}

void Rebuild::hold(TapeNode& n) {
  n.mode = TapeNode::Mode::kHeld;
  if (has_codes(n)) encode(n);
  if (n.codes.defined()) {
    n.held_bytes = n.codes.bytes();
    live_->add(n.held_bytes);
  } else if (n.external && n.handles == 0) {
    n.own = true;
    n.memory = own(copy_of(c10::Storage(n.weak.lock())));
    n.held_bytes = n.bytes;
  } else {
    keep_original(n);
  }
  Row& row = rows_[n.row];
  row.stored += n.held_bytes;
  if (n.saved) {
    row.recipe = false;
    row.how = n.codes.defined() ? n.how : Treatment();
  }
  if (held_.size() == held_.capacity()) {
    std::erase_if(held_, [](const auto& held) { return held.expired(); });
    std::erase_if(originals_, [](const auto& entry) { return entry.second.expired(); });
    held_.reserve(std::max<size_t>(64, 2 * held_.size()));
  }
  held_.push_back(n.weak_from_this());
  release_followers(n);
}

void Rebuild::encode(TapeNode& n) {
  const Unseen unseen;
  RECORD_USER_SCOPE(kCodecScope);
  const int64_t elements = n.bytes / static_cast<int64_t>(c10::elementSize(n.coded));
  const CodeRows c = n.rows_of_codes();
  const bool rounds = n.how.content() == Content::kRounded;
  const at::Tensor all = view_of(c10::Storage(n.weak.lock()), Geometry::flat(n.coded, elements)),
                   t = c.outer > 1 ? in_rows(all, c) : all.view({-1, n.coded_row});
  try {
    n.codes = n.codec->encode(t, derive(options_.noise, n.row));
    if (n.codes.settle) n.codes.settle();
  } catch (...) {  // other readers have it as it was
    n.codes = {};
    n.exact |= rounds;
    keep_original(n);
    throw;
  }
  if (rounds && t.is_cpu() && lost_a_value(n.codes)) {
    n.codes = {};
    n.exact = true;
  }
}

void Rebuild::drop(TapeNode& n) {
  if (n.memory) {
    if (n.memory.use_count() == 1) freeing_ += n.memory->bytes;
    trash_.storages.push_back(std::exchange(n.memory, {}));
  }
  if (n.codes.defined()) {
    live_->add(-n.held_bytes);
    trash_.codes.push_back(std::exchange(n.codes, {}));
  }
  n.held_bytes = 0;
  n.own = false;
}

// Releases held tensors that can now be rebuilt from `anchor`.
void Rebuild::release_followers(TapeNode& anchor) {
  std::vector<TapeNodePtr> front, next, seen;
  const auto follow = [&](const TapeNode& from) {
    for (const auto& weak : from.follow) {
      TapeNodePtr n = weak.lock();
      if (!n || std::ranges::find(seen, n) != seen.end()) continue;
      seen.push_back(n);
      next.push_back(std::move(n));
    }
  };
  follow(anchor);
  for (int depth = 0; depth < kMostFollowers && !next.empty(); ++depth) {
    front = std::exchange(next, {});
    for (const TapeNodePtr& n : front) {
      if (n.get() == &anchor) continue;
      if (n->count == 0) {
        follow(*n);
      } else {
        decide_again(*n);
      }
    }
  }
}

void Rebuild::let_go(TapeNode& n) {
  const Within row(row_, n.row);
  rows_[n.row].stored -= n.held_bytes;
  drop(n);
  make_recipe(n);
}

void Rebuild::release(TapeNode& n) {
  if (--n.count > 0) return;
  const TapeNode::Mode mode = std::exchange(n.mode, TapeNode::Mode::kNone);
  if (mode == TapeNode::Mode::kRecipe) {
    release_inputs(n);
  } else {
    drop(n);
  }
}

void Rebuild::release_inputs(TapeNode& n) {
  for (const Record::Input& input : n.record->inputs) release(*input.node);
}

bool Rebuild::needs_any(const TapeNode& n, c10::ArrayRef<Geometry> written) const {
  for (const auto& weak : n.follow) {
    const TapeNodePtr follower = weak.lock();
    if (!follower || follower->mode != TapeNode::Mode::kRecipe) continue;
    for (const Record::Input& input : follower->record->inputs) {
      if (input.node.get() != &n) continue;
      if (input.written) return true;
      for (const Geometry& part : written) {
        if (!are_disjoint(input.geometry, part)) return true;
      }
    }
  }
  return false;
}

std::vector<TapeNodePtr> Rebuild::before_write(const TapeNode& n, c10::ArrayRef<Geometry> written) {
  std::vector<TapeNodePtr> beside;
  const std::shared_ptr<HeldStorage> memory = original(n);
  if (!memory) return beside;
  for (const auto& weak : std::vector(memory->users)) {
    const TapeNodePtr user = weak.lock();
    // Readers of saved tensors compare versions, as always: only recipes need the old values.
    if (!user || user->memory != memory || user->count == user->handles) continue;
    if (!needs_any(*user, written)) {
      user->partial = true;
      beside.push_back(user);
      continue;
    }
    trash_.storages.push_back(std::exchange(user->memory, own(copy_of(memory->storage))));
    user->own = true;
    user->mode = TapeNode::Mode::kHeld;
    user->free = false;
    rows_[user->row].stored += user->bytes - user->held_bytes;
    user->held_bytes = user->bytes;
  }
  return beside;
}

void Rebuild::close() {
  if (budget_ > 0) most_live_ = std::max(budget_, live_->bytes() - freeing_ + span_);
  for (const auto& weak : held_) {
    const TapeNodePtr n = weak.lock();
    if (!n || n->mode != TapeNode::Mode::kHeld) continue;
    n->record = nullptr;  // it stays held, and needs no history
    if (n->handles > 0 || !n->memory || n->own) continue;
    const c10::Storage& storage = n->memory->storage;
    // Freed memory may be there again when it is needed (FSDP).
    if (storage.use_count() > 1 && static_cast<int64_t>(storage.nbytes()) == n->bytes) {
      c10::OptionalStreamGuard made_on;  // so that the copy comes after what made it
      if (storage.device().is_cuda()) {
        made_on.reset_stream(c10::Stream(c10::Stream::UNSAFE, storage.device(),
                                         static_cast<c10::StreamId>(n->stream)));
      }
      trash_.storages.push_back(std::exchange(n->memory, own(copy_of(storage))));
      n->own = true;
    }
  }
  held_ = {};
  originals_.clear();
  saved_by_.clear();
  closed_ = true;
}

}  // namespace compact
