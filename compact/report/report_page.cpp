// SPDX-License-Identifier: Apache-2.0
#include "compact/report/report_page.h"

#include <cmath>

#include "compact/base/check.h"
#include "compact/report/report_chart.h"

namespace compact {
namespace {

// Colours of runs: Okabe and Ito's, told apart by colour-blind readers; darkened or lightened so
// that text in them is legible on the page.
const char* const kStyle = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1c2024; --soft: #5b6470; --line: #dfe3e8;
  --s0: #50565e; --s1: #0068a8; --s2: #b84a00; --s3: #00795a; --s4: #a3407e; --s5: #8a6d00;
  --s6: #2b7bba; --s7: #7a5195; --failed: #c62828;
  --p0: #6f7b88; --p1: #b3bcc6; --p2: #0072b2; --p3: #e69f00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8eaed; --soft: #a3abb5;
  --line: #31373d; --s0: #c3c9d1; --s1: #56b4e9; --s2: #ff9a4d; --s3: #2fcb9e; --s4: #e39ac5;
  --s5: #e8cf4a; --s6: #8cc8f2; --s7: #c5a3dc; --failed: #ff8a80;
  --p0: #8a95a1; --p1: #57606a; --p2: #3f9fd8; --p3: #e69f00; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 24px 48px; max-width: 1060px; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 6px; }
p { margin: 0 0 12px; color: var(--soft); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.chart { overflow: hidden; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 9px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-size: 14px; font-weight: 600; color: var(--soft); white-space: normal;
  vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:last-child, th:last-child { padding-right: 0; }
td small { display: block; font-size: 14px; color: var(--soft); }
td:first-child small { white-space: normal; overflow-wrap: anywhere; min-width: 11em; }
.note { font-size: 14px; margin-top: 10px; white-space: pre-line; }
td b { font-weight: 650; }
.failed { color: var(--failed); white-space: normal; text-align: left; overflow-wrap: anywhere; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 15px; color: var(--ink); }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 14px; fill: var(--soft); }
svg text.name { font-size: 15px; fill: var(--ink); }
svg text.label { font-size: 15px; font-weight: 600; stroke: none; }
.grid { stroke: var(--line); fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.leader { fill: none; stroke-width: 1; opacity: .7; }
.dot { stroke: var(--page) !important; stroke-width: 1.2; }
/* On narrow screens a run is a card, and the keys of the cards stand for labels of curves. */
@media (max-width: 700px) {
  body { padding: 20px 16px 32px; }
  svg text, svg text.name { font-size: 26px; }
  svg text.label { font-size: 22px; }
  .keyed { width: var(--wide); }
  .keyed .label, .keyed .leader { display: none; }
  .runs thead { display: none; }
  .runs tr { display: grid; grid-template-columns: repeat(3, 1fr); gap: 8px; padding: 10px 0;
    border-bottom: 1px solid var(--line); }
  .runs td { border: 0; padding: 0; text-align: left; white-space: normal; }
  .runs td:first-child, .runs .failed { grid-column: 1 / -1; }
  .runs td[data-name]::before { content: attr(data-name); display: block; font-size: 13px;
    color: var(--soft); }
}
)";

std::string colours() {
  std::string css;
  for (int i = 0; i < 8; ++i) {
    css += cat(".s", i, " { stroke: var(--s", i, "); } text.s", i, ", circle.s", i,
               " { fill: var(--s", i, "); } .key.s", i, " { background: var(--s", i, "); }\n");
  }
  for (size_t i = 0; i < memory_parts().size(); ++i) {
    css += cat(".p", i, " { fill: var(--p", i, "); background: var(--p", i, "); }\n");
  }
  return css;
}

// Flags as HTML.
std::string one_a_line(const std::string& flags) {
  std::string html = html_escape(flags);
  for (size_t at = 0; (at = html.find(" --", at)) != html.npos;) html.replace(at, 1, "<br>");
  return html;
}

std::string table(std::span<const RunReport> runs) {
  std::string html = "<div class=\"scroll\"><table class=\"runs\">\n<thead><tr><th>preset</th>";
  for (const ReportColumn& c : columns_of(runs)) html += "<th>" + html_escape(c.title) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunReport& run = runs[i];
    html +=
        cat("<tr><td><span class=\"key s", i % 8, "\"></span><b>", html_escape(run.preset), "</b>");
    if (!run.flags.empty()) html += "<small>" + one_a_line(run.flags) + "</small>";
    html += "</td>";
    if (run.exit_code != 0) {
      html +=
          cat("<td class=\"failed\" colspan=\"", columns_of(runs).size(), "\">failed (exit code ",
              run.exit_code, "): ", html_escape(run.message), "</td></tr>\n");
      continue;
    }
    for (const ReportColumn& c : columns_of(runs)) {
      const double value = run.number(c.key);
      html +=
          cat("<td data-name=\"", html_escape(c.title), "\">", html_escape(format_value(c, value)));
      if (i > 0) {
        std::string relative = format_relative(c, value, runs[0].number(c.key));
        if (relative.ends_with("x")) relative.replace(relative.size() - 1, 1, "\u00d7");
        html += "<small>" + html_escape(relative) + "</small>";
      }
      html += "</td>";
    }
    html += "</tr>\n";
  }
  return html +
         "</tbody></table></div>\n<p class=\"note\">train loss: the last one logged. held: bytes "
         "allocated since the start of the forward pass that live at its end. saved: what "
         "slots store for the backward pass. step time: median.</p>\n";
}

}  // namespace

std::string html_page(const std::string& title, const std::string& subtitle,
                      const std::string& body) {
  return cat("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
             "<title>", html_escape(title), "</title>\n<style>", kStyle, colours(),
             "</style>\n</head>\n<body>\n<h1>", html_escape(title), "</h1>\n<p>",
             html_escape(subtitle), "</p>\n", body, "</body>\n</html>\n");
}

std::string report_page(std::span<const RunReport> runs, const std::string& title,
                        const std::string& subtitle, const std::string& note) {
  COMPACT_CHECK(!runs.empty(), "[report] there are no runs");
  std::string html = table(runs);
  if (!note.empty()) html += "<p class=\"note\">" + html_escape(note) + "</p>\n";
  if (const std::string chart = loss_chart(runs); !chart.empty()) {
    html +=
        "<h2>Loss over steps</h2>\n<p>Lines: training loss. Dots: evaluation loss. Equal curves "
        "lie upon each other.</p>\n<div class=\"chart\">" +
        chart + "</div>\n";
  }
  if (const std::string chart = accuracy_chart(runs); !chart.empty()) {
    html += "<h2>Evaluation accuracy over epochs, percent</h2>\n<div class=\"chart\">" + chart +
            "</div>\n";
  }
  if (const std::string chart = memory_chart(runs); !chart.empty()) {
    html += "<h2>Peak memory of a step</h2>\n<p class=\"legend\">";
    for (size_t i = 0; i < memory_parts().size(); ++i) {
      html += cat("<span><span class=\"key p", i, "\"></span>", memory_parts()[i], "</span>");
    }
    html += "</p>\n<div class=\"chart\">" + chart + "</div>\n";
  }
  return html_page(title, subtitle, html);
}

}  // namespace compact
