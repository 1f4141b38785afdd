// SPDX-License-Identifier: Apache-2.0
// With a shell script in place of `compact train`.
#include "compact/apps/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compact/apps/process.h"
#include "compact/apps/step_rounds.h"
#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Writes what a run writes; fails as `compact train` does under preset recompute.
const char* const kProgram = R"(#!/bin/sh
log="$0.log"
for a in "$@"; do echo "$a" >> "$log"; done
echo -- >> "$log"
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset="$2"; shift;;
    --output_dir) out="$2"; shift;;
  esac
  shift
done
mkdir -p "$out"
if [ "$preset" = recompute ]; then
  echo "a warning" >&2
  echo "compact: error: not today" >&2
  exit 3
fi
echo '{}' > "$out/train_config.json"
echo '{"step": 1, "loss": 2.5}' > "$out/metrics.jsonl"
echo '{"eval_loss": 2.25, "memory/peak_bytes": 2048, "parameters": 77}' > "$out/all_results.json"
)";

class Compare : public testing::Test {
 protected:
  Compare() {
    write_text(program(), kProgram);
    options.config.model = "llama-tiny";
    options.config.train_file = {"a.txt"};
    options.config.output_dir = folder / "out";
    options.train_arguments = {"--model=llama-tiny", "--train_file=a.txt"};
    options.program = program();
  }
  std::string program() const { return folder / "program"; }
  void write_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  int run(std::vector<std::string> presets) {
    options.presets = std::move(presets);
    return compare(options, console, errors);
  }
  std::string error_of(std::vector<std::string> presets) {
    try {
      run(std::move(presets));
    } catch (const InputError& e) {
      EXPECT_FALSE(std::filesystem::exists(folder / "out"));
      EXPECT_FALSE(std::filesystem::exists(program() + ".log"));
      return e.what();
    }
    return "no error";
  }

  TemporaryFolder folder;
  CompareOptions options;
  std::ostringstream console, errors;
};

TEST_F(Compare, RunsEachPresetInItsFolder) {
  EXPECT_EQ(run({"off", "exact"}), 0);
  EXPECT_EQ(read(program() + ".log"),
            "train\n--model=llama-tiny\n--train_file=a.txt\n--preset\noff\n--output_dir\n" +
                (folder / "out/off").string() + "\n--\n" +
                "train\n--model=llama-tiny\n--train_file=a.txt\n--preset\nexact\n--output_dir\n" +
                (folder / "out/exact").string() + "\n--\n");
  const auto json = nlohmann::json::parse(read(folder / "out/compare.json"));
  EXPECT_EQ(json["runs"].size(), 2u);
  EXPECT_EQ(json["runs"][1]["preset"], "exact");
  EXPECT_EQ(json["runs"][1]["values"]["memory/peak_bytes"], 2048);
  EXPECT_EQ(json["config"]["model"], "llama-tiny");
  EXPECT_THAT(read(folder / "out/compare.html"), HasSubstr("77 parameters"));
  EXPECT_THAT(console.str(), HasSubstr("2.2500"));
  EXPECT_EQ(errors.str(), "");
}

// Trains with 1 s a step; measured, each call is slower than the one before. `off` fails then.
const char* const kTimed = R"(#!/bin/sh
seconds=1
for a in "$@"; do
  case "$a" in
    --measure_steps=*) echo "$@" >> "$0.measured"; seconds=$(wc -l < "$0.measured");;
  esac
done
while [ $# -gt 1 ]; do
  case "$1" in
    --preset) preset="$2";;
    --output_dir) out="$2";;
  esac
  shift
done
if [ "$preset" = off ] && [ $seconds != 1 ]; then exit 3; fi
mkdir -p "$out"
echo '{}' > "$out/train_config.json"
echo "{\"step_seconds\": $seconds, \"tokens_per_second\": $((100 / seconds))}" > "$out/all_results.json"
)";

TEST_F(Compare, StepTimesAreMeasuredInTurn) {
  write_text(program(), kTimed);
  EXPECT_EQ(run({"exact", "recompute", "off"}), 0);
  // Rounds: 1 2 (3: off fails), 4 5, 6 7.
  const auto runs = nlohmann::json::parse(read(folder / "out/compare.json"))["runs"];
  EXPECT_EQ(runs[0]["rounds"], nlohmann::json({1, 4, 6}));
  EXPECT_EQ(runs[1]["rounds"], nlohmann::json({2, 5, 7}));
  EXPECT_EQ(runs[0]["values"]["step_seconds"], 4);
  EXPECT_EQ(runs[0]["values"]["step_spread"], 1.25);
  EXPECT_EQ(runs[0]["values"]["tokens_per_second"], 25);
  EXPECT_EQ(runs[1]["relative_to_first"]["step_seconds"], 1.25);
  EXPECT_EQ(runs[2]["rounds"], nlohmann::json::array());
  EXPECT_EQ(runs[2]["values"]["step_seconds"], 1);
  EXPECT_THAT(errors.str(), HasSubstr("off could not be measured again (exit code 3)"));
  EXPECT_THAT(console.str(), HasSubstr("step time: median of 3 rounds"));
  EXPECT_THAT(read(folder / "out/compare.html"), HasSubstr("step time: median of 3 rounds"));
  EXPECT_THAT(read(program() + ".measured"), HasSubstr("--preset exact --measure_steps=3 "));
  EXPECT_FALSE(std::filesystem::exists(folder / "out/exact/measured"));

  options.timing_rounds = 0;
  options.config.overwrite_output_dir = true;
  std::filesystem::remove(program() + ".measured");
  EXPECT_EQ(run({"exact"}), 0);
  EXPECT_FALSE(std::filesystem::exists(program() + ".measured"));
  options.timing_rounds = -1;
  EXPECT_THROW(run({"exact"}), InputError);
}

TEST(OtherWork, IsWhatIsNotOwn) {
  const CpuTimes before{.clock = 10, .machine = 100, .own = 3, .cores = 4};
  const OtherWork work =
      other_work(before, {.clock = 12, .machine = 107, .own = 8, .cores = 4});  // 7 s, 5 s own
  EXPECT_EQ(work.taken, 1);
  EXPECT_EQ(work.cores, 4);
  EXPECT_EQ(other_work(before, {.clock = 12, .machine = -1, .own = 8, .cores = 4}).cores, 0);
  EXPECT_EQ(other_work(before, {.clock = 12, .machine = 101, .own = 8, .cores = 4}).taken, 0);
}

TEST(OtherWork, TimesAreOfEndedProcessesToo) {
  if (!std::filesystem::exists("/proc/stat")) GTEST_SKIP() << "no /proc/stat here";
  const CpuTimes before = cpu_times();
  run_process({"/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"}, {});
  const CpuTimes after = cpu_times();
  EXPECT_GT(after.own, before.own);
  EXPECT_GT(after.machine, before.machine);
  EXPECT_GE(after.cores, 1);
}

TEST(OtherWork, IsSaidWhereTheMachineIsBusy) {
  StepRounds rounds{.count = 3, .other = {.cores = 2, .taken = 0.08}};
  EXPECT_THAT(rounds.text(), HasSubstr("other work took 0.08 of 2 cores\n"));
  EXPECT_THAT(rounds.text(), testing::Not(HasSubstr("busy")));
  rounds.other.taken = 0.12;
  EXPECT_THAT(rounds.text(), HasSubstr("warning: the machine was busy"));
  EXPECT_EQ(StepRounds().text(), "");
}

TEST_F(Compare, AFailureIsShownAndTheOthersGoOn) {
  EXPECT_EQ(run({"recompute", "off"}), 3);
  EXPECT_THAT(console.str(), HasSubstr("recompute failed (exit code 3): not today"));
  EXPECT_EQ(errors.str(), "a warning\ncompact: error: not today\n");
  const auto json = nlohmann::json::parse(read(folder / "out/compare.json"));
  EXPECT_EQ(json["runs"][0]["exit_code"], 3);
  EXPECT_EQ(json["runs"][0]["message"], "not today");
  EXPECT_EQ(json["runs"][1]["exit_code"], 0);
}

// Beside the preset a run may have flags of its own, which stand above those that all share.
TEST_F(Compare, RunsHaveFlagsOfTheirOwn) {
  options.train_arguments.emplace_back("--optim=adamw");
  options.train_arguments.emplace_back("--set=slot a = keep");
  EXPECT_EQ(run({"off", " muon=compact --optim muon --learning_rate=4e-3 "}), 0);
  EXPECT_THAT(read(program() + ".log"),
              HasSubstr("--\ntrain\n--model=llama-tiny\n--train_file=a.txt\n--set=slot a = keep\n"
                        "--preset\ncompact\n--optim=muon\n--learning_rate=4e-3\n--output_dir\n" +
                        (folder / "out/muon").string() + "\n--\n"));
  EXPECT_THAT(console.str(), HasSubstr("== muon (2 of 2): --optim muon --learning_rate=4e-3\n"));
  EXPECT_THAT(console.str(), HasSubstr("\nmuon: --optim muon --learning_rate=4e-3\n"));
  const auto json = nlohmann::json::parse(read(folder / "out/compare.json"));
  EXPECT_EQ(json["runs"][1]["flags"], "--optim muon --learning_rate=4e-3");
  EXPECT_THAT(read(folder / "out/compare.html"),
              HasSubstr(">--optim muon<br>--learning_rate=4e-3<"));
}

TEST_F(Compare, ABudgetCanBeAPartOfTheFirstPeak) {
  EXPECT_EQ(run({"off", "half=auto --budget 50%", "auto --budget=12.5% --allow quantize"}), 0);
  EXPECT_THAT(read(program() + ".log"), HasSubstr("--preset\nauto\n--budget=1024B\n--output_dir\n" +
                                                  (folder / "out/half").string() + "\n"));
  EXPECT_THAT(read(program() + ".log"),
              HasSubstr("--preset\nauto\n--allow=quantize\n--budget=256B\n"));
}

TEST_F(Compare, WhatOneRunReadsIsNotGivenToThoseThatWouldWarnOfIt) {
  options.config.allow = "quantize";
  options.config.rank = 8;
  options.config.min_lr_ratio = 0.5;
  options.config.lr_scheduler_type = "constant";
  options.train_arguments = {"--allow=quantize", "--rank=8", "--min_lr_ratio=0.5"};
  EXPECT_EQ(run({"off", "compact", "exact --allow project"}), 0);
  const std::string log = read(program() + ".log");
  EXPECT_THAT(log, HasSubstr("train\n--allow=quantize\n--min_lr_ratio=0.5\n--preset\noff\n"))
      << "of no effect in any run: each says so";
  EXPECT_THAT(log,
              HasSubstr("--allow=quantize\n--rank=8\n--min_lr_ratio=0.5\n--preset\ncompact\n"));
  EXPECT_THAT(log, HasSubstr("train\n--min_lr_ratio=0.5\n--preset\nexact\n--allow=project\n"));

  std::filesystem::remove_all(folder / "out");
  std::filesystem::remove(program() + ".log");
  options.config.rank = 0;
  options.train_arguments = {"--allow=quantize"};
  EXPECT_EQ(run({"off", "auto --budget 50%"}), 0);
  EXPECT_THAT(read(program() + ".log"), HasSubstr("train\n--preset\noff\n"));
  EXPECT_THAT(read(program() + ".log"), HasSubstr("train\n--allow=quantize\n--preset\nauto\n"));
}

TEST_F(Compare, APartOfAPeakThatIsNotKnownFails) {
  EXPECT_EQ(run({"recompute", "auto --budget 50%", "off"}), 3);
  EXPECT_THAT(console.str(), HasSubstr("auto failed (exit code 2): --budget in percent"));
  const auto json = nlohmann::json::parse(read(folder / "out/compare.json"));
  EXPECT_EQ(json["runs"][1]["exit_code"], 2);
  EXPECT_EQ(json["runs"][2]["exit_code"], 0);
}

TEST_F(Compare, TakesPolicyFiles) {
  write_text(folder / "mine.policy", "slot layers.*.mlp.silu = recompute\n");
  EXPECT_EQ(run({(folder / "mine.policy").string()}), 0);
  EXPECT_THAT(read(program() + ".log"),
              HasSubstr("--preset\noff\n--policy\n" + (folder / "mine.policy").string() + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/mine/metrics.jsonl"));
}

TEST_F(Compare, RefusesBeforeAnythingRuns) {
  EXPECT_THAT(error_of({}), HasSubstr("--presets"));
  EXPECT_THAT(error_of({"off", "exat"}), HasSubstr("did you mean `exact`"));
  EXPECT_THAT(error_of({"off", "off"}), HasSubstr("comes twice"));
  EXPECT_THAT(error_of({"off", "missing.policy"}), HasSubstr("missing.policy"));
  EXPECT_THAT(error_of({"off", "off --seed 1"}), HasSubstr("name one: `NAME=off --seed 1`"));
  EXPECT_THAT(error_of({"off", ""}), HasSubstr("missing beside a comma"));
  EXPECT_THAT(error_of({"../x=off"}), HasSubstr("../x=off: cannot open"));
  EXPECT_THAT(error_of({"=off"}), HasSubstr("a name consists of letters"));
  EXPECT_THAT(error_of({"..=off"}), HasSubstr("a name consists of letters"));
  EXPECT_THAT(error_of({"compact --optin muon"}), HasSubstr("did you mean `optim`?"));
  EXPECT_THAT(error_of({"compact --optim moun"}), HasSubstr("did you mean `muon`?"));
  EXPECT_THAT(error_of({"compact --optim"}), HasSubstr("--optim: a value is missing"));
  EXPECT_THAT(error_of({"compact --budget="}), HasSubstr("--budget: its value is empty"));
  EXPECT_THAT(error_of({"compact muon"}), HasSubstr("`muon` is not a flag of train"));
  EXPECT_THAT(error_of({"off", "x=off --output_dir y"}), HasSubstr("cannot differ"));
  EXPECT_THAT(error_of({"auto"}), HasSubstr("--preset auto needs a --budget"));
  EXPECT_THAT(error_of({"auto --budget 50%"}), HasSubstr("this is the first"));
  EXPECT_THAT(error_of({"off", "auto --budget -5%"}), HasSubstr("is `-5%`"));
  options.config.resume_from_checkpoint = "latest";
  EXPECT_THAT(error_of({"off"}), HasSubstr("--resume_from_checkpoint"));
  options.config.resume_from_checkpoint = "";
  options.config.block_size = 0;
  EXPECT_THAT(error_of({"off"}), HasSubstr("--block_size"));
  options.config.block_size = 8;
  options.program = folder / "no_such_program";
  EXPECT_THAT(error_of({"off"}), HasSubstr("cannot be started"));
}

TEST_F(Compare, StopsWhenARunWasStopped) {
  write_text(program(), "#!/bin/sh\nexit 130\n");
  EXPECT_EQ(run({"off", "exact"}), 130);
  EXPECT_THAT(console.str(), testing::Not(HasSubstr("== exact")));
}

TEST(Process, GivesExitCodeAndLines) {
  std::vector<std::string> heard;
  const auto result = run_process({"/bin/sh", "-c", "printf 'one\\ntwo' >&2; exit 7"},
                                  [&](const std::string& line) { heard.push_back(line); });
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.signal, 0);
  EXPECT_THAT(heard, ElementsAre("one", "two"));
  EXPECT_EQ(result.errors, heard);
  EXPECT_EQ(run_process({"/bin/sh", "-c", "kill -9 $$"}, {}).exit_code, 137);
  EXPECT_EQ(
      run_process({"/bin/sh", "-c", "for i in $(seq 100); do echo $i >&2; done"}, {}).errors.back(),
      "100");
}

TEST(Process, PassesSignalsOn) {
  // The child signals its parent, which must live on and hand the signal back.
  const auto result = run_process(
      {"/bin/sh", "-c",
       "trap 'exit 9' TERM; kill -TERM $PPID; for i in $(seq 200); do sleep 0.05; done"},
      {});
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_EQ(result.signal, SIGTERM);
}

}  // namespace
}  // namespace compact
