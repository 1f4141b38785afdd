// SPDX-License-Identifier: Apache-2.0
#include "compact/report/report_chart.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/report/chart.h"

namespace compact {
namespace {

double part(const RunReport& run, size_t which) {
  static const char* const keys[] = {"memory/weights_bytes", "memory/optimizer_bytes",
                                     "memory/saved_bytes"};
  const auto known = [&](size_t i) {
    const double bytes = run.number(keys[i]);
    return std::isfinite(bytes) ? bytes : 0.0;
  };
  if (which < 3) return known(which);
  return std::max(0.0, run.number("memory/peak_bytes") - known(0) - known(1) - known(2));
}

// Curves of runs: some as lines, some as dots, both of what `what` names, over what `over` names.
struct LineChart {
  Curve RunReport::*lines;
  Curve RunReport::*dots;
  const char *what, *over;
  int digits;  // of values that are shown
};

std::string draw(const LineChart& chart, std::span<const RunReport> runs) {
  Axis x{chart.over}, y{chart.what};
  x.add(0);
  size_t letters = 0;
  for (const RunReport& run : runs) {
    letters = std::max(letters, run.preset.size());
    for (const Curve* curve : {&(run.*chart.lines), &(run.*chart.dots)}) {
      for (const auto& [place, value] : *curve) {
        x.add(place);
        y.add(value);
      }
    }
  }
  if (!(y.high >= y.low)) return "";
  if (x.high == 0) x.high = 1;
  Chart svg(cat(chart.what, " over ", chart.over, "s"), x, y, letters, /*keys=*/true);
  // Equal curves lie upon each other: earlier ones are wider, so that they stay in sight.
  for (size_t i = 0; i < runs.size(); ++i) {
    const double wider = static_cast<double>(runs.size() - 1 - i);
    const RunReport& run = runs[i];
    const Curve &line = run.*chart.lines, &dots = run.*chart.dots;
    if (!line.empty()) svg.line(line, i, 2 + 1.7 * wider);
    for (const auto& dot : dots) {
      svg.dot(dot, i, 3.4 + wider,
              run.preset + formatted(": evaluation %s %.*f at %s %.7g", chart.what, chart.digits,
                                     dot.second, chart.over, dot.first));
    }
    if (const Curve& last = line.empty() ? dots : line; !last.empty()) {
      svg.label(last.back(), i, run.preset);
    }
  }
  return svg.svg();
}

}  // namespace

std::string loss_chart(std::span<const RunReport> runs) {
  return draw({&RunReport::loss, &RunReport::eval_loss, "loss", "step", 4}, runs);
}

std::string accuracy_chart(std::span<const RunReport> runs) {
  return draw({&RunReport::eval_accuracy, &RunReport::eval_accuracy, "accuracy", "epoch", 2}, runs);
}

std::span<const char* const> memory_parts() {
  static const char* const names[] = {"weights", "optimizer state", "saved tensors",
                                      "gradients and temporaries"};
  return names;
}

std::string memory_chart(std::span<const RunReport> runs) {
  constexpr double kRow = 62, kBar = 24;
  double most = 0;
  for (const RunReport& run : runs) {
    const double peak = run.number("memory/peak_bytes");
    if (std::isfinite(peak)) most = std::max(most, peak);
  }
  if (most == 0) return "";
  Axis bytes{"B", 0, most};
  double unit = 1;
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (most / unit < 1024) break;
    unit *= 1024;
    bytes = {larger, 0, most / unit};
  }
  Chart svg("Peak memory", bytes, kRow * static_cast<double>(runs.size()));
  const double first = runs[0].number("memory/peak_bytes");
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunReport& run = runs[i];
    const double top = kRow * static_cast<double>(i + 1) - kBar - 2;
    svg.add(formatted("<text class=\"name\" x=\"%.1f\" y=\"%.1f\"><tspan font-weight=\"600\">",
                      svg.x(0) + 2, top - 7) +
            html_escape(run.preset) + "</tspan><tspan dx=\"10\">");
    const double peak = run.number("memory/peak_bytes");
    if (!std::isfinite(peak)) {
      svg.add("no figures</tspan></text>\n");
      continue;
    }
    svg.add(format_bytes(std::llround(peak)));
    if (i > 0 && std::isfinite(first) && first > 0)
      svg.add(formatted(" (%.2f\u00d7)", peak / first));
    svg.add("</tspan></text>\n");
    double begin = 0;
    for (size_t p = 0; p < memory_parts().size(); ++p) {
      const double more = std::min(part(run, p), peak - begin);
      if (more <= 0) continue;
      svg.add(formatted(
          "<rect class=\"p%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>"
          "%s: %s</title></rect>\n",
          p, svg.x(begin / unit), top, svg.x((begin + more) / unit) - svg.x(begin / unit), kBar,
          memory_parts()[p], format_bytes(std::llround(more)).c_str()));
      begin += more;
    }
  }
  return svg.svg();
}

}  // namespace compact
