// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "compact/base/check.h"
#include "compact/report/chart.h"
#include "compact/report/report_chart.h"
#include "compact/report/report_page.h"
#include "compact/report/run_report.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::Not;

void write_report(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

RunReport run_row(const std::string& preset, double loss, double peak) {
  RunReport r;
  r.preset = preset;
  r.loss = {{1, loss + 2}, {2, loss + 1}, {3, loss}};
  r.eval_loss = {{3, loss + 0.5}};
  r.results = {{"eval_loss", loss + 0.5},          {"memory/peak_bytes", peak},
               {"memory/weights_bytes", peak / 8}, {"memory/optimizer_bytes", peak / 4},
               {"memory/saved_bytes", peak / 2},   {"step_seconds", 0.5}};
  return r;
}

TEST(RunReport, ReadsWhatARunWrote) {
  const TemporaryFolder folder;
  write_report(folder / "metrics.jsonl",
               R"({"step": 10, "loss": 3.5, "memory/peak_bytes": 7})"
               "\n"
               R"({"step": 10, "eval_loss": 3.25, "eval_perplexity": 25.8})"
               "\n"
               R"({"step": 20, "loss": null})"
               "\n"
               R"({"step": 30, "loss": 3.0})"
               "\n"
               R"({"step": 30, "eval_accuracy": 0.5, "epoch": 1.5})"
               "\n"
               R"({"step": 40, "lo)");
  RunReport report;
  read_run(folder.path(), report);
  EXPECT_EQ(report.loss, (Curve{{10, 3.5}, {30, 3.0}}));
  EXPECT_EQ(report.eval_loss, (Curve{{10, 3.25}}));
  EXPECT_EQ(report.eval_accuracy, (Curve{{1.5, 50}}));
  EXPECT_THAT(accuracy_chart(std::span(&report, 1)), HasSubstr("accuracy over epochs"));
  EXPECT_EQ(report.number("loss"), 3.0);
  EXPECT_EQ(report.number("eval_loss"), 3.25);  // of a run that did not finish
  EXPECT_TRUE(std::isnan(report.number("memory/peak_bytes")));
  write_report(folder / "all_results.json", R"({"eval_loss": 2.75, "memory/peak_bytes": 1024})");
  read_run(folder.path(), report);
  EXPECT_EQ(report.number("eval_loss"), 2.75);
  EXPECT_EQ(report.number("memory/peak_bytes"), 1024);
  write_report(folder / "all_results.json", "{");
  EXPECT_THROW(read_run(folder.path(), report), InputError);
}

TEST(RunReport, ReadsNothingFromNothing) {
  const TemporaryFolder folder;
  RunReport report;
  read_run(folder / "missing", report);
  EXPECT_TRUE(report.loss.empty());
  EXPECT_TRUE(std::isnan(report.number("loss")));
}

TEST(RunReport, TableShowsValuesAndRatios) {
  const RunReport runs[] = {run_row("off", 2, 4096), run_row("exact", 2.125, 1024)};
  const std::string table = report_table(runs);
  for (const char* part : {"preset", "off", "exact", "2.0000", "2.1250", "+0.1250", "4.00 KiB",
                           "1.00 KiB", "0.25x", "0.500 s", "1.00x"}) {
    EXPECT_THAT(table, HasSubstr(part)) << table;
  }
}

TEST(RunReport, RoundsStandAboveTheTimesOfTraining) {
  RunReport runs[] = {run_row("off", 2, 4096), run_row("exact", 2.125, 1024)};
  EXPECT_THAT(report_table(runs), Not(HasSubstr("spread")));
  runs[1].results["tokens_per_second"] = 100;
  runs[1].rounds = {0.375, 0.125};
  EXPECT_EQ(runs[1].number("step_seconds"), 0.25);
  EXPECT_EQ(runs[1].number("step_spread"), 1);
  EXPECT_EQ(runs[1].number("tokens_per_second"), 200);
  EXPECT_EQ(runs[1].number("memory/peak_bytes"), 1024);
  for (const char* part : {"spread", "0.250 s", "0.50x", "100 %"}) {
    EXPECT_THAT(report_table(runs), HasSubstr(part));
  }
}

TEST(RunReport, TableHasNoLineThatSaysNothing) {
  RunReport failed;
  failed.preset = "bad";
  failed.exit_code = 2;
  const RunReport runs[] = {run_row("off", 2, 4096), failed};
  std::istringstream table(report_table(runs));
  for (std::string line; std::getline(table, line);) {
    EXPECT_NE(line.find_first_not_of(' '), line.npos);
  }
}

TEST(RunReport, TableSaysWhatRunsHadOfTheirOwn) {
  RunReport other = run_row("other", 2.125, 1024);
  other.flags = "--optim muon";
  const RunReport runs[] = {run_row("off", 2, 4096), other};
  EXPECT_THAT(report_table(runs), testing::EndsWith("\nother: --optim muon\n"));
  EXPECT_EQ(report_json(runs)[1]["flags"], "--optim muon");
}

TEST(RunReport, JsonHoldsNumbersRatiosAndCurves) {
  RunReport failed;
  failed.preset = "bad";
  failed.exit_code = 2;
  failed.message = "no \"such\" thing";
  const RunReport runs[] = {run_row("off", 2, 4096), run_row("exact", 2.125, 1024), failed};
  const auto json = nlohmann::json::parse(report_json(runs).dump());
  EXPECT_EQ(json[1]["values"]["memory/peak_bytes"], 1024);
  EXPECT_EQ(json[1]["relative_to_first"]["memory/peak_bytes"], 0.25);
  EXPECT_EQ(json[1]["relative_to_first"]["loss"], 0.125);
  EXPECT_EQ(json[0]["curves"]["loss"].size(), 3u);
  EXPECT_EQ(json[0]["curves"]["loss"][2], (nlohmann::json{3, 2}));
  EXPECT_TRUE(json[2]["values"]["loss"].is_null());
  EXPECT_EQ(json[2]["message"], failed.message);
}

TEST(ReportPage, IsSelfContainedAndEscaped) {
  RunReport failed = run_row("<b>&", 1, 1e6);
  failed.exit_code = 3;
  failed.message = "<script>alert(1)</script>";
  failed.flags = "--x <script>";
  const RunReport runs[] = {run_row("off", 2, 3e9), run_row("exact", 2, 1e9), failed};
  const std::string page = report_page(runs, "A < B", "it's", "so & so");
  EXPECT_THAT(page, HasSubstr(">so &amp; so<"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<b>&<")));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("url(")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf")));
  EXPECT_THAT(page, HasSubstr("A &lt; B"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("failed (exit code 3)"));
  EXPECT_THAT(page, HasSubstr("0.33\u00d7"));
  EXPECT_THROW(report_page({}, "", ""), InputError);
}

TEST(ReportPage, ManagesWithNextToNothing) {
  RunReport empty;
  empty.preset = "off";
  EXPECT_EQ(loss_chart(std::span(&empty, 1)), "");
  EXPECT_EQ(accuracy_chart(std::span(&empty, 1)), "");
  EXPECT_EQ(memory_chart(std::span(&empty, 1)), "");
  EXPECT_THAT(report_page(std::span(&empty, 1), "t", "s"), Not(HasSubstr("<svg")));
  RunReport point = empty;
  point.loss = {{0, 1.0}};
  EXPECT_THAT(loss_chart(std::span(&point, 1)), Not(HasSubstr("nan")));
}

TEST(ReportChart, MemoryPartsAddUpToThePeak) {
  const RunReport one = run_row("off", 2, 8 << 20);
  const std::string chart = memory_chart(std::span(&one, 1));
  for (const char* part :
       {"weights: 1.00 MiB", "optimizer state: 2.00 MiB", "saved tensors: 4.00 MiB",
        "gradients and temporaries: 1.00 MiB", ">8.00 MiB<"}) {
    EXPECT_THAT(chart, HasSubstr(part));
  }
}

TEST(ReportChart, LabelsStandApartInTheirOrderBesideThePlot) {
  for (const int count : {1, 2, 8, 30}) {
    std::vector<RunReport> runs;
    for (int i = 0; i < count; ++i) runs.push_back(run_row(cat("r", i), 2 - 0.001 * i, 4096));
    const std::string chart = loss_chart(runs);
    double latest = 40;  // below the name of the axis
    for (int i = 0; i < count; ++i) {
      const size_t end = chart.find(cat("\">r", i, "</text>"));
      ASSERT_NE(end, chart.npos);
      const size_t begin = chart.rfind("y=\"", end) + 3;
      const double y = std::stod(chart.substr(begin, end - begin));
      EXPECT_GE(y, latest + (i == 0 ? 0 : count == 30 ? 9 : 24)) << count << " " << i;
      latest = y;
    }
    EXPECT_LE(latest, 370);
  }
}

TEST(ReportChart, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const auto& [low, high] : {std::pair{2.31, 5.6}, {0.0, 1e9}, {3.0, 3.0}, {0.001, 0.0012}}) {
    const auto ticks = axis_ticks(low, high, 6);
    ASSERT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 12u);
    EXPECT_LE(ticks.front(), low * (1 + 1e-9));
    EXPECT_GE(ticks.back(), high * (1 - 1e-9));
  }
}

}  // namespace
}  // namespace compact
