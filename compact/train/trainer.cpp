// SPDX-License-Identifier: Apache-2.0
#include "compact/train/trainer.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>

#include "compact/base/check.h"
#include "compact/codecs/memory_place.h"
#include "compact/config/exit_codes.h"
#include "compact/ops/memory/memory.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "compact/train/failures.h"
#include "compact/train/last_writes.h"
#include "compact/train/ranks.h"
#include "compact/train/run_impl.h"
#include "compact/train/signals.h"

namespace compact {
namespace {

// Whether, and how, this process is to end: as a number whose sum over ranks says so for all.
constexpr int64_t kTerminate = int64_t{1} << 32;
int64_t own_signal() {
  if (SignalScope::count() == 0) return 0;
  return SignalScope::signal() == SIGINT ? 1 : kTerminate;
}

}  // namespace

void Run::save(const char* why) {
  if (rewards_) s_.rewards = rewards_->of_all(group_);
  const GatheredWeights gathered(group_, *model_, *optimizer_);
  const bool dealt = !optimizer_->dealt_bytes().empty();
  bool asked = !dealt;
  OtherParts others;
  if (dealt) {
    others = [&](const std::filesystem::path& folder, FunctionRef<void()> own) {
      asked = true;
      return parts_of_others(group_, folder, own);
    };
    if (!group_.leads()) write_own_part(group_, *optimizer_);
  }
  const auto write = [&] {
    try {
      saved_ = output_->write_checkpoint(s_, *model_, *optimizer_, why, others);
    } catch (...) {
      if (!asked) group_.gather_patiently("");  // there is no folder to write to
      throw;
    }
  };
  if (group_.lead(write)) saved_step_ = s_.step;
}

// The others wait, so that none ends before the model is written.
void Run::finish() {
  check_disks();
  for (const Parameter* p : model_->parameters()) {
    (is_outside(p->place, device_) ? figures_.weights_outside_bytes : figures_.weights_bytes) +=
        p->weight_bytes();
  }
  if (group_.size() > 1) {
    figures_.rank_peaks = group_.gather(cat(figures_.highest_peak_bytes, " ", plan_->peak_bytes()));
  }
  const GatheredWeights gathered(group_, *model_, *optimizer_);
  const auto keep = [this](const char* what, FunctionRef<void()> write) {
    lead(group_, [&] { write_last(console_, what, write, hooks_.wait, saved_); });
  };
  Evaluations evaluations;
  if (!measures()) {
    keep("the model", [&] {  // before the best takes its place
      write_model(c_, task_, *model_);
      check_disks();
    });
    if (evaluation_->take_best(*model_, s_, metrics())) {
      keep("the best model", [&] { write_model(c_, task_, *model_); });
    }
    evaluations = evaluation_->all(*model_, s_, metrics());
  }
  figures_.planned_peak_bytes = plan_->peak_bytes();
  keep("all_results.json", [&] {
    write_results(c_, s_, figures_, evaluations, task_, *model_, *optimizer_);
    output_->metrics().flush();
  });
  lead(group_, [&] { conclude(); });
  group_.barrier();
}

void Run::conclude() {
  if (!s_.bits.empty()) output_->write_bits(s_.bits);
  console_.line(result_line(s_, figures_));
  if (graph_) {
    console_.line(cat("replayed ", graph_->replays(), " of ", figures_.step_seconds.size(),
                      " steps from a graph"));
  }
  console_.line(cat(measures() ? "figures in " : "model in ", c_.output_dir));
}

void Run::show_plan() {
  optimizer_.reset();
  model_.reset();
  if (plan_) plan_->explain(console_);
}

int Run::go() {
  prepare();
  describe();
  while (!last()) {
    if (s_.micro == 0 && bits_->due(s_.step)) choose_bits();
    const bool whole = step();
    int64_t signals = 0;  // of all ranks
    if (whole) {
      const bool logs = s_.step % c_.logging_steps == 0 || last();
      const bool evaluates = !measures() && evaluation_->due(s_.step) && !last();
      const bool saves = !measures() && c_.save_steps > 0 && s_.step % c_.save_steps == 0;
      signals = group_.sum_of(own_signal());
      if (logs || evaluates || saves || signals > 0) progress_->settle();
      if (graph_ && (evaluates || last())) graph_->forget();
      std::optional<GatheredWeights> gathered;
      if (evaluates || saves || signals > 0 || last()) {
        gathered.emplace(group_, *model_, *optimizer_);
        share_statistics(group_, *model_);
      }
      s_.seconds = seconds_before_ + std::chrono::duration<double>(Clock::now() - started_).count();
      if (logs) log();
      console_.bar(s_.step, total_steps_, "");
      if (evaluates) {
        evaluation_->validate(*model_, s_, metrics());
      }
      if (saves) {
        or_warn(console_, cat("checkpoint-", s_.step), [&] { save(""); });
      }
    }
    if (group_.size() == 1) signals = own_signal();  // one that came meanwhile
    const bool asked = !whole || signals > 0;
    if (asked && !(whole && last())) {
      progress_->settle();
      if (saved_step_ != s_.step || !whole)
        save(" on request; go on with --resume_from_checkpoint latest");
      group_.barrier();  // or a launcher would end the one that saves
      return signals < kTerminate ? kExitInterrupt : kExitTerminate;
    }
  }
  finish();
  return kExitOk;
}

int train(const TrainConfig& config, std::ostream& out, bool terminal, const TrainHooks& hooks) {
  const Place& place = hooks.place;
  std::ostream nowhere(nullptr);
  Console console(place.rank == 0 ? out : nowhere, place.rank == 0 && terminal);
  if (place.size > 1) {
    console.line(cat("ranks    ", place.size, ", which meet at ", place.address, ":", place.port));
  }
  const std::shared_ptr<Group> group =
      join_group(place, std::chrono::seconds(std::max<int64_t>(1, config.ddp_timeout)));
  const SignalScope signals;  // until the run has released its folder
  return together(*group, [&] {
    check_run(config);
    TrainConfig taken = for_task(config);
    check_ranks(taken, group->size());
    if (taken.deterministic_reduce) group->sum_in_a_tree();
    agree_on_start(*group, place.restarts > 0, taken);
    Run run(taken, console, hooks, group);
    try {
      return run.go();
    } catch (const StoppedEarly& early) {
      console.line(early.line);
      return early.exit_code;
    } catch (const NonFiniteError& e) {
      std::string about;
      try {
        about = run.about_not_finite();
      } catch (const std::exception&) {  // memory may be short: the step is still named
      }
      throw NonFiniteError(e.what() + about);
    } catch (const std::exception& e) {
      if (out_of_memory(e)) run.show_plan();
      throw;
    }
  });
}

}  // namespace compact
