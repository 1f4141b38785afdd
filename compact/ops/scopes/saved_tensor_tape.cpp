// SPDX-License-Identifier: Apache-2.0
// The part of SavedTensorStore that has tensors rebuilt.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/blocks.h"
#include "compact/ops/scopes/held_tensor_impl.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_names_impl.h"
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

namespace compact {
namespace {

// Whether it is fewer than one in 16 elements of what was made, as a class token.
bool is_small_part(const at::Tensor& t) {
  return 16 * t.numel() * t.element_size() < static_cast<int64_t>(t.storage().nbytes());
}

}  // namespace

void SavedTensorStore::start_tape() {
  stop_tape();
  if (policy_.slot("", Role::kCheap).storage() != Storage::kRecompute) {
    COMPACT_CHECK(!budget_,
                  "`slot role:heavy` has a budget, which is kept by what is rebuilt: it "
                  "needs the line `slot role:cheap = recompute`, as preset exact has it");
    return;
  }
  const auto parameter = [this](const void* storage) { return names_->parameter(storage); };
  RebuildOptions options;
  options.least = 4 * options_.least_elements;  // of 4 bytes each
  options.budgeted = static_cast<bool>(budget_);
  options.named = !options_.parameters.empty();
  options.rounds = policy_.rounds();
  options.noise = options_.noise;
  COMPACT_CHECK(!options.rounds || !options.budgeted,
                "`slot role:heavy` has a budget beside codecs that round: products would run again "
                "on rounded tensors; take codecs that lose nothing, or no budget");
  tape_ = std::make_shared<OpTape>(options, live_, parameter);
}

void SavedTensorStore::stop_tape() {
  if (!tape_) return;
  tape_->close();
  saved_ = taped_rows();
  span_ = tape_->span();
  taped_.clear();
  tape_ = nullptr;
}

int64_t SavedTensorStore::budget_now() const {
  // Graphs of earlier passes may still be alive.
  if (budget_.bytes > 0) return budget_.bytes - (all_live_->bytes() - live_->bytes());
  const auto saved = static_cast<double>(std::max(saved_bytes_, saved_before_));
  return std::max(static_cast<int64_t>(budget_.part * saved), approached_);
}

void SavedTensorStore::keep_budget(bool begins) {
  if (!tape_ || !budget_ || saved_.empty()) return;
  for (; counted_ < saved_.size(); ++counted_) {
    const SavedTensor& t = saved_[counted_];
    if (!t.shared && !t.parameter) saved_bytes_ += t.bytes;
  }
  // Tensors can be rebuilt from an operation's results once it has ended: only then may this fail.
  const bool ended = std::exchange(saved_in_, tape_->calls()) != tape_->calls();
  int64_t budget = budget_now();
  bool kept = tape_->keep_within(budget);
  if (!begins || !ended) return;
  while (!kept && budget_.part > 0) {
    budget += budget / 4 + 1;
    // In the first pass the saved bytes, of which the budget is a part, are not known yet.
    if (saved_before_ > 0) approached_ = budget;
    kept = tape_->keep_within(budget);
  }
  if (kept || budget_.part > 0) return;
  fail("[saved tensors] a budget of ", budget_.bytes, " bytes cannot be kept: ", all_live_->bytes(),
       " are held after `", saved_.back().name, "`, and ", tape_->span(),
       " more live while others are rebuilt; nothing that is left can be rebuilt in fewer. A part, "
       "as "
       "30%, is kept as far as can be, and the report says what that takes");
}

std::vector<SavedTensor> SavedTensorStore::taped_rows() const {
  static const Treatment kAgain = Treatment::parse("recompute");
  std::vector<SavedTensor> rows = saved_;
  for (const size_t i : taped_) {
    const Rebuild::Row row = tape_->row(i);
    rows[i].stored = row.stored;
    if (!rows[i].shared) rows[i].treatment = row.recipe ? kAgain : row.how;
    if (row.recipe || row.how.codec()) rows[i].exact_for.clear();
  }
  return rows;
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::on_tape(const at::Tensor& t,
                                                                    SavedTensor& row,
                                                                    Holding& held) {
  Treatment how = held.how;
  const bool rounds = how.content() == Content::kRounded;
  COMPACT_CHECK(!rounds || how.codec()->bytes(1, t.numel(), t.scalar_type()), "slot `", row.name,
                "` = ", how.text(),
                " beside `slot role:cheap = recompute`: a tensor that others are rebuilt from is "
                "encoded as it lies in memory, without its shape");
  // It has codes of its own: those of the whole would be held for it.
  if (policy_.rounds() && held.reads == Reads::kNear && is_small_part(t)) return nullptr;
  OpTape::Saving saving{.row = saved_.size()};
  if (rounds) {
    saving.need = held.reads == Reads::kNearBeside ? Need::kBeside : Need::kNear;
    if (held.reads == Reads::kRelu) {
      saving.need = Need::kSigns;
      const int64_t bytes = how.codec()->bytes(1, t.numel(), t.scalar_type()).value_or(0);
      if (tape_->has_near(t, bytes)) {  // values follow from others: signs alone are held
        how = held.how = how.beginning_with(Treatment::of_signs().first());
        saving.need = Need::kExact;
      }
    }
  } else if (held.reads == Reads::kShape) {
    saving.need = Need::kNear;
  }
  if (options_.lossless && only_counted(t) && !how.codec() && at::isFloatingType(t.scalar_type()) &&
      t.element_size() <= 4 && t.numel() >= options_.least_elements && tape_->has_two_values(t)) {
    static const Treatment kBits = Treatment::parse("mask");
    how = how.beginning_with(kBits.first());
  }
  saving.whole = policy_.slot(row.name, Role::kCheap).storage() != Storage::kRecompute;
  // There an autograd function of C++ saves, maybe what it made.
  saving.outside = !OpWatch::current() && !t.requires_grad();
  if (how.content() == Content::kSigns) {
    saving.limit = how.codec()->bytes(1, t.numel(), t.scalar_type()).value_or(row.bytes);
  } else if (saving.need != Need::kBeside) {
    saving.codes = how;
    saving.dimensions = held.dimensions;
    saving.if_squared = held.if_squared;
  }
  std::optional<OpTape::Saved> saved = tape_->save(t, saving);
  if (!saved) return nullptr;
  rounded_ |= rounds;
  if (held.refused)
    row.exact_for = OpWatch::current() ? OpWatch::current()->name : "an unknown operation";
  row.shared = saved->shared;
  row.treatment = how;
  if (!row.shared && !row.parameter) row.bytes = saved->bytes;
  saved_.push_back(std::move(row));
  taped_.push_back(saving.row);
  auto memory = std::make_shared<Memory>();
  memory->node = std::move(saved->node);
  return memory;
}

}  // namespace compact
