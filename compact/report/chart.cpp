// SPDX-License-Identifier: Apache-2.0
#include "compact/report/chart.h"

#include <algorithm>
#include <ranges>

#include "compact/base/text.h"

namespace compact {
namespace {

// Sizes leave room for the text of narrow screens, which is larger beside the chart.
constexpr double kWidth = 860, kLeft = 90, kTop = 48, kBottom = 360, kLabelGap = 25;

std::string tick_label(double value, double spacing) {
  if (spacing >= 1) return format_count(std::llround(value));
  const int digits = static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9));
  return formatted("%.*f", std::min(digits, 9), value);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) +
         html_escape(text) + "</text>\n";
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

void Axis::add(double x) {
  low = std::min(low, x);
  high = std::max(high, x);
}

Chart::Chart(const std::string& what, const Axis& x, double top, double bottom, double left,
             double right, bool bars, bool keys)
    : x_{x.low, x.high, left, right}, y_{0, 1, bottom, top} {
  svg_ = (keys ? formatted("<svg class=\"keyed\" style=\"--wide: %.0f%%\"",
                           100 * kWidth / (right + 30))
               : "<svg") +
         formatted(" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", kWidth, bottom + 68) +
         html_escape(what) + "\">\n";
  const std::vector<double> ticks =
      axis_ticks(x.low, x.high, std::max(2, static_cast<int>((right - left) / 120)));
  for (const double t : ticks) {
    if (t > x.high) continue;
    add(formatted("<path class=\"%s\" d=\"M%.1f %.1fV%.1f\"/>", bars ? "grid" : "axis", x_(t),
                  bars ? top : bottom, bottom + 5));
    add(text_at(x_(t), bottom + 27, "middle", tick_label(t, ticks[1] - ticks[0])));
  }
  add(bars ? formatted("<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/>", left, top, bottom)
           : formatted("<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", left, bottom, right));
  add(text_at((left + right) / 2, bottom + 60, "middle", x.name));
}

Chart::Chart(const std::string& what, const Axis& x, double height)
    : Chart(what, x, 4, 4 + height, 20, kWidth - 20, true, false) {}

Chart::Chart(const std::string& what, const Axis& x, const Axis& y, size_t letters, bool keys)
    : Chart(what, x, kTop, kBottom, kLeft,
            kWidth - 24 - (keys ? 9.2 : 14) * static_cast<double>(std::min<size_t>(letters, 40)),
            false, keys) {
  const std::vector<double> ticks = axis_ticks(y.low, y.high, 6);
  y_.low = ticks.front(), y_.high = ticks.back();
  for (const double t : ticks) {
    add(formatted("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", x_.from, y_(t), x_.to));
    add(text_at(x_.from - 8, y_(t) + 5, "end", tick_label(t, ticks[1] - ticks[0])));
  }
  add(text_at(8, 24, "start", y.name));
}

void Chart::line(const Curve& curve, size_t colour, double width) {
  if (curve.size() == 1) dot(curve[0], colour, 2 + width / 2);  // which no path shows
  std::string d;
  for (const auto& [place, value] : curve) {
    d += formatted("%s%.1f %.1f", d.empty() ? "M" : "L", x_(place), y_(value));
  }
  add(formatted("<path class=\"line s%zu\" stroke-width=\"%.1f\" d=\"", colour % 8, width) + d +
      "\"/>\n");
}

void Chart::dot(const std::pair<double, double>& at, size_t colour, double radius,
                const std::string& title) {
  add(formatted("<circle class=\"dot s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>", colour % 8,
                x_(at.first), y_(at.second), radius) +
      html_escape(title) + "</title></circle>\n");
}

void Chart::label(const std::pair<double, double>& at, size_t colour, const std::string& text) {
  labels_.push_back({y_(at.second), x_(at.first), y_(at.second), colour % 8, text});
}

std::string Chart::svg() const {
  // Moved apart half of the way up, half of it down, in their order and beside the plot.
  std::vector<Label> labels = labels_;
  std::ranges::stable_sort(labels, {}, &Label::at);
  const auto count = static_cast<double>(labels.size());
  const double gap = std::min(kLabelGap, (y_.from - y_.to) / count);
  double moved = 0, latest = -INFINITY;
  for (const Label& l : labels) {
    latest = std::max(l.at, latest + gap);
    moved += latest - l.at;
  }
  latest = y_.to - gap;
  for (Label& l : labels) l.at = latest = std::max(l.at - moved / count, latest + gap);
  latest = y_.from + gap;
  for (Label& l : std::views::reverse(labels)) l.at = latest = std::min(l.at, latest - gap);
  std::string svg = svg_;
  for (const Label& l : labels) {
    svg += formatted(
        "<path class=\"leader s%zu\" d=\"M%.1f %.1fL%.1f %.1f\"/>"
        "<text class=\"label s%zu\" x=\"%.1f\" y=\"%.1f\">",
        l.colour, l.x + 3, l.y, x_.to + 16, l.at, l.colour, x_.to + 20, l.at + 5);
    svg += html_escape(l.text) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace compact
