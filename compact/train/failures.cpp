// SPDX-License-Identifier: Apache-2.0
#include "compact/train/failures.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <new>

#include "compact/base/check.h"
#include "compact/config/precision.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/search.h"

namespace compact {

ErrorText text_of(const std::exception& e) {
  if (const auto* rank = dynamic_cast<const RankError*>(&e)) return {rank->what(), rank->code};
  if (dynamic_cast<const BudgetError*>(&e)) return {e.what(), kExitBudget};
  if (dynamic_cast<const InputError*>(&e)) return {e.what(), kExitInput};
  if (dynamic_cast<const NonFiniteError*>(&e)) return {e.what(), kExitNonFinite};
  if (const auto* error = dynamic_cast<const c10::Error*>(&e)) {
    if (const auto memory = out_of_memory(*error)) return {*memory, kExitBudget};
    if (const auto sentence = not_deterministic(*error)) return {*sentence, kExitInput};
    const std::string message = error->what_without_backtrace();
    return {message.substr(0, message.find('\n')), kExitInternal};
  }
  if (dynamic_cast<const std::bad_alloc*>(&e)) return {"out of memory", kExitBudget};
  return {e.what(), out_of_memory(e) ? kExitBudget : kExitInternal};
}

LeftByAnother::LeftByAnother(const Failure& f)
    : std::runtime_error(cat("rank ", f.rank, ": ", f.message)), failure(f) {}

RankError::RankError(int rank, const ErrorText& d)
    : std::runtime_error(cat("rank ", rank, ": ", d.message)), code(d.code) {}

int together(Group& group, const std::function<int()>& work) {
  if (group.size() == 1) return work();
  const auto leave = [&](const std::exception& e, int patience) {
    const ErrorText why = text_of(e);
    const Failure own{group.rank(), why.code, why.message};
    if (group.leave(own, std::chrono::seconds(patience))) throw RankError(group.rank(), why);
    throw LeftByAnother(group.failure().value_or(own));
  };
  try {
    return work();
  } catch (const GroupError& e) {  // some ranks no longer answer
    if (const auto failure = group.failure()) throw LeftByAnother(*failure);
    leave(e, 3);
  } catch (const std::exception& e) {
    leave(e, 120);  // the others may be in the middle of an evaluation
  }
  return kExitInternal;  // not reached
}

}  // namespace compact
