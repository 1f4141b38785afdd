// SPDX-License-Identifier: Apache-2.0
// A chart as inline SVG: axes with round ticks, curves, dots, and labels at the right end. Colours
// are CSS classes of the page: s0 .. s7 for curves, p0 .. p3 for the parts of a bar.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace compact {

using Curve = std::vector<std::pair<double, double>>;  // the place on the x axis, and the value

// Text for HTML, in element content and in attributes.
std::string html_escape(const std::string& text);

// About `count` round numbers that cover [low, high].
std::vector<double> axis_ticks(double low, double high, int count);

// An axis over [low, high], which `add` widens.
struct Axis {
  std::string name = {};
  double low = INFINITY, high = -INFINITY;
  void add(double x);
};

class Chart {
 public:
  // Curves. Labels have at most `letters`. Where `keys` stand beside the chart for them, narrow
  // screens show no labels.
  Chart(const std::string& what, const Axis& x, const Axis& y, size_t letters, bool keys);
  // Bars to the right, for which the plot has `height` pixels.
  Chart(const std::string& what, const Axis& x, double height);

  double x(double value) const { return x_(value); }
  void add(const std::string& svg) { svg_ += svg; }
  void line(const Curve& curve, size_t colour, double width);
  // `title` is shown where a pointer rests on the dot.
  void dot(const std::pair<double, double>& at, size_t colour, double radius,
           const std::string& title = "");
  // Labels move apart where they would lie upon each other.
  void label(const std::pair<double, double>& at, size_t colour, const std::string& text);
  std::string svg() const;

 private:
  // Maps [low, high] to pixels.
  struct Scale {
    double low, high, from, to;
    double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
  };
  struct Label {
    double at, x, y;
    size_t colour;
    std::string text;
  };
  Chart(const std::string& what, const Axis& x, double top, double bottom, double left,
        double right, bool bars, bool keys);

  Scale x_, y_;
  std::string svg_;
  std::vector<Label> labels_;
};

}  // namespace compact
