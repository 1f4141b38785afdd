// SPDX-License-Identifier: Apache-2.0
// The part of SavedTensorStore that has tensors rebuilt.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/blocks.h"
#include "compact/ops/scopes/held_tensor_impl.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_names_impl.h"

namespace compact {

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
  // Graphs of passes before may live.
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
  // What an operation saves may follow from what is known once it has ended.
  const bool ended = std::exchange(saved_in_, tape_->calls()) != tape_->calls();
  int64_t budget = budget_now();
  bool kept = tape_->keep_within(budget);
  if (!begins || !ended) return;
  while (!kept && budget_.part > 0) {
    budget += budget / 4 + 1;
    // In the first pass it is not known yet of how many bytes it is a part.
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
  }
  return rows;
}

std::shared_ptr<SavedTensorStore::Memory> SavedTensorStore::on_tape(const at::Tensor& t,
                                                                    SavedTensor& row,
                                                                    Treatment how) {
  COMPACT_CHECK(
      how.content() != Content::kRounded, "slot `", row.name, "` = ", how.text(),
      " beside `slot role:cheap = recompute`: what others are rebuilt from must be exact; "
      "take codecs that lose nothing, or rebuild nothing");
  if (options_.lossless && only_counted(t) && !how.codec() && at::isFloatingType(t.scalar_type()) &&
      t.element_size() <= 4 && t.numel() >= options_.least_elements && tape_->has_two_values(t)) {
    static const Treatment kBits = Treatment::parse("mask");
    how = how.beginning_with(kBits.first());
  }
  const size_t number = saved_.size();
  const bool whole = policy_.slot(row.name, Role::kCheap).storage() != Storage::kRecompute;
  // There an autograd function of C++ saves, maybe what it made.
  const bool outside = !OpWatch::current() && !t.requires_grad();
  std::optional<int64_t> limit;
  if (how.content() == Content::kSigns) {
    limit = how.codec()->bytes(1, t.numel(), t.scalar_type()).value_or(row.bytes);
  }
  std::optional<OpTape::Saved> saved =
      tape_->save(t, number, whole, outside, limit ? Treatment() : how, limit);
  if (!saved) return nullptr;
  row.shared = saved->shared;
  row.treatment = how;
  if (!row.shared) row.bytes = saved->bytes;
  saved_.push_back(std::move(row));
  taped_.push_back(number);
  auto memory = std::make_shared<Memory>();
  memory->node = std::move(saved->node);
  return memory;
}

}  // namespace compact
