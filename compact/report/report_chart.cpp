// SPDX-License-Identifier: Apache-2.0
#include "compact/report/report_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

// Maps [low, high] to pixels.
struct Scale {
  double low, high, from, to;
  double operator()(double x) const { return from + (x - low) / (high - low) * (to - from); }
};

std::string tick_label(double value, double spacing) {
  const int digits = spacing >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9));
  return formatted("%.*f", std::min(digits, 9), value);
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
};

std::string path_of(const Curve& curve, const Scale& x, const Scale& y) {
  std::string d;
  for (const auto& [step, value] : curve) {
    d += formatted("%s%.1f %.1f", d.empty() ? "M" : "L", x(step), y(value));
  }
  return d;
}

// Pixels that the longest name takes, about.
double name_width(std::span<const RunReport> runs) {
  size_t most = 0;
  for (const RunReport& run : runs) most = std::max(most, run.preset.size());
  return 10.2 * static_cast<double>(std::min<size_t>(most, 40));
}

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
  constexpr double kWidth = 860, kHeight = 400, kLeft = 76, kTop = 16, kBottom = 350;
  const double right = kWidth - 24 - name_width(runs);
  Range places, values;
  for (const RunReport& run : runs) {
    for (const Curve* curve : {&(run.*chart.lines), &(run.*chart.dots)}) {
      for (const auto& [place, value] : *curve) {
        places.add(place);
        values.add(value);
      }
    }
  }
  if (!(values.high >= values.low)) return "";
  const std::vector<double> y_ticks = axis_ticks(values.low, values.high, 6);
  const double last_place = places.high > 0 ? places.high : 1;
  const std::vector<double> x_ticks = axis_ticks(0, last_place, static_cast<int>((right - kLeft) / 100));
  const Scale x{0, last_place, kLeft, right};
  const Scale y{y_ticks.front(), y_ticks.back(), kBottom, kTop};

  std::string svg =
      formatted("<svg class=\"labelled\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s over %ss\">\n", kWidth,
                kHeight, chart.what, chart.over);
  for (const double t : y_ticks) {
    svg += formatted("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", kLeft, y(t), right);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", kLeft - 8,
                     y(t) + 4.5, tick_label(t, y_ticks[1] - y_ticks[0]).c_str());
  }
  for (const double t : x_ticks) {
    if (t > x.high) continue;
    svg += formatted("<path class=\"axis\" d=\"M%.1f %.1fv5\"/>", x(t), kBottom);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x(t),
                     kBottom + 21,
                     t == std::floor(t) ? format_count(std::llround(t)).c_str()
                                        : tick_label(t, x_ticks[1]).c_str());
  }
  svg += formatted("<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", kLeft, kBottom, right);
  svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                   (kLeft + right) / 2, kHeight - 8, chart.over);

  // Equal curves lie upon each other: earlier ones are wider, so that they stay in sight.
  std::vector<std::pair<double, size_t>> labels;
  for (size_t i = 0; i < runs.size(); ++i) {
    const double behind = static_cast<double>(runs.size() - 1 - i);
    const RunReport& run = runs[i];
    if (const Curve& line = run.*chart.lines; !line.empty()) {
      svg += formatted("<path class=\"line s%zu\" stroke-width=\"%.1f\" d=\"", i % 8,
                       2 + 1.7 * behind);
      svg += path_of(line, x, y) + "\"/>\n";
      if (line.size() == 1) {  // which no path shows
        svg += formatted("<circle class=\"dot s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", i % 8,
                         x(line[0].first), y(line[0].second), 3.4 + behind);
      }
    }
    for (const auto& [place, value] : run.*chart.dots) {
      svg += formatted("<circle class=\"dot s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>",
                       i % 8, x(place), y(value), 3.4 + behind);
      svg +=
          html_escape(run.preset) + formatted(": evaluation %s %.*f at %s %.7g</title></circle>\n",
                                              chart.what, chart.digits, value, chart.over, place);
    }
    const Curve& last = (run.*chart.lines).empty() ? run.*chart.dots : run.*chart.lines;
    if (!last.empty()) labels.emplace_back(y(last.back().second), i);
  }
  spread_labels(labels, 19, kBottom);
  for (const auto& [at, i] : labels) {
    const RunReport& run = runs[i];
    const Curve& last = (run.*chart.lines).empty() ? run.*chart.dots : run.*chart.lines;
    svg += formatted("<path class=\"leader s%zu\" d=\"M%.1f %.1fL%.1f %.1f\"/>", i % 8,
                     x(last.back().first) + 3, y(last.back().second), right + 16, at);
    svg +=
        formatted("<text class=\"label s%zu\" x=\"%.1f\" y=\"%.1f\">", i % 8, right + 20, at + 4.5);
    svg += html_escape(run.preset) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double spacing = 10 * power;
  for (const double round : {1.0, 2.0, 5.0}) {
    if (round * power >= rough * 0.999) {
      spacing = round * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto first = static_cast<int64_t>(std::floor(low / spacing + 1e-9));
  const auto last = static_cast<int64_t>(std::ceil(high / spacing - 1e-9));
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * spacing);
  return ticks;
}

void spread_labels(std::vector<std::pair<double, size_t>>& labels, double gap, double bottom) {
  std::sort(labels.begin(), labels.end());
  double moved = 0, latest = -INFINITY;
  for (const auto& [at, i] : labels) {
    latest = std::max(at, latest + gap);
    moved += latest - at;
  }
  latest = -INFINITY;
  for (auto& [at, i] : labels) {  // half of the way up, half of it down
    at = latest = std::max(at - moved / static_cast<double>(labels.size()), latest + gap);
  }
  for (size_t i = labels.size(); i-- > 0;) {
    const double most = i + 1 < labels.size() ? labels[i + 1].first - gap : bottom;
    labels[i].first = std::min(labels[i].first, most);
  }
}

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
  constexpr double kWidth = 860, kLeft = 8, kRight = 800, kRow = 62, kBar = 24, kTop = 4;
  double most = 0;
  for (const RunReport& run : runs) {
    const double peak = run.number("memory/peak_bytes");
    if (std::isfinite(peak)) most = std::max(most, peak);
  }
  if (most == 0) return "";
  double unit = 1;
  const char* name = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (most / unit < 1024) break;
    unit *= 1024;
    name = larger;
  }
  const std::vector<double> ticks = axis_ticks(0, most / unit, 6);
  const Scale x{0, ticks.back() * unit, kLeft, kRight};
  const double bottom = kTop + kRow * static_cast<double>(runs.size());
  std::string svg =
      formatted("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"Peak memory\">\n", kWidth,
                bottom + 34);
  for (const double& t : ticks) {
    svg += formatted("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x(t * unit), kTop, bottom);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s%s%s</text>\n",
                     x(t * unit), bottom + 20, tick_label(t, ticks[1]).c_str(),
                     &t == &ticks.back() ? " " : "", &t == &ticks.back() ? name : "");
  }
  const double first = runs[0].number("memory/peak_bytes");
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunReport& run = runs[i];
    const double top = kTop + kRow * static_cast<double>(i) + kRow - kBar - 6;
    svg += formatted("<text class=\"name\" x=\"%.1f\" y=\"%.1f\"><tspan font-weight=\"600\">",
                     kLeft + 2, top - 7);
    svg += html_escape(run.preset) + "</tspan><tspan dx=\"10\">";
    const double peak = run.number("memory/peak_bytes");
    if (!std::isfinite(peak)) {
      svg += "no figures</tspan></text>\n";
      continue;
    }
    svg += format_bytes(std::llround(peak));
    if (i > 0 && std::isfinite(first) && first > 0) svg += formatted(" (%.2f\u00d7)", peak / first);
    svg += "</tspan></text>\n";
    double begin = 0;
    for (size_t p = 0; p < memory_parts().size(); ++p) {
      const double bytes = std::min(part(run, p), peak - begin);
      if (bytes <= 0) continue;
      svg += formatted(
          "<rect class=\"p%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>", p,
          x(begin), top, x(begin + bytes) - x(begin), kBar);
      svg += formatted("%s: %s</title></rect>\n", memory_parts()[p],
                       format_bytes(std::llround(bytes)).c_str());
      begin += bytes;
    }
  }
  svg += formatted("<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/>\n", kLeft, kTop, bottom);
  return svg + "</svg>\n";
}

}  // namespace compact
