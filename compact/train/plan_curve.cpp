// SPDX-License-Identifier: Apache-2.0
#include "compact/train/plan_curve.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/report/chart.h"
#include "compact/report/report_page.h"

namespace compact {
namespace {

constexpr int kPoints = 24;

// Whether a policy of a higher peak gives anything for it: time, or a gradient that is closer.
bool is_better(const CurvePoint& p, const CurvePoint& below) {
  return p.seconds < below.seconds || p.error.value_or(INFINITY) < below.error.value_or(INFINITY);
}

// Policies for budgets that rise from the least peak by equal factors, each better than the last.
std::vector<CurvePoint> sweep(const char* name, BudgetSearch& search, int64_t most) {
  std::vector<CurvePoint> points;
  const auto low = static_cast<double>(search.least_peak());
  const double high = std::max(static_cast<double>(most), low);
  for (int i = 0; i < kPoints; ++i) {
    const double budget = low * std::pow(high / low, static_cast<double>(i) / (kPoints - 1));
    const auto c = search.find(static_cast<int64_t>(std::ceil(budget)));
    const CurvePoint point{name, c->plan.reserved, c->seconds, c->added_products, c->error};
    if (points.empty() || is_better(point, points.back())) points.push_back(point);
  }
  return points;
}

CurvePoint preset_point(const std::string& name, const StepRequest& request,
                        const SegmentGroups& groups, const Speed& speed) {
  std::vector<Operation> operations;
  const StepPlan plan = plan_step(request, speed.gpu ? &operations : nullptr);
  CurvePoint point{.name = name, .peak = plan.reserved};
  if (!Policy::preset(name).has(PolicyKind::kGrad)) point.error = 0;  // all rebuilt exactly
  double added = 0;
  const auto micro = static_cast<double>(request.step.accumulation);
  const std::unique_ptr<Network> network = request.network(at::kMeta);
  const std::vector<const Segment*> segments = network->segments();
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentInfo& info = groups.segments()[i];
    const Rebuilding again = rebuilding(*segments[i], speed.segments[info.group], info.work);
    added += again.seconds * micro;
    point.products += again.products * micro;
  }
  point.seconds = speed.gpu ? step_time(operations, *speed.gpu).total().seconds
                            : step_seconds(groups, request.step, speed, plan.memory) + added;
  return point;
}

// The flags that give a point again; without `allow` it is a preset's.
std::string flags_of(const CurvePoint& p, const std::string& allow) {
  if (allow.empty()) return cat("--preset ", p.name);
  return cat("--preset auto --allow ", allow, " --budget ", p.peak);
}

nlohmann::ordered_json json_of(const std::vector<CurvePoint>& points,
                               const std::string& allow = {}) {
  auto rows = nlohmann::ordered_json::array();
  for (const CurvePoint& p : points) {
    rows.push_back({{"name", p.name},
                    {"peak_bytes", p.peak},
                    {"step_seconds", p.seconds},
                    {"added_flops", p.products},
                    {"gradient_error", p.error ? nlohmann::ordered_json(*p.error) : nullptr},
                    {"flags", flags_of(p, allow)}});
  }
  return rows;
}

std::string table_of(const std::vector<CurvePoint>& points) {
  std::string out;
  for (const CurvePoint& p : points) {
    out += formatted("  %-16s %12s %14.4g %16.4g %14s\n", p.name.c_str(),
                     format_bytes(p.peak).c_str(), p.seconds, p.products * 1e-12,
                     p.error ? formatted("%.3f", *p.error).c_str() : "-");
  }
  return out;
}

std::string svg_of(const PlanCurve& curve) {
  const auto place = [](const CurvePoint& p) {
    return std::pair(static_cast<double>(p.peak) * 0x1p-30, p.seconds);
  };
  Axis x{"peak memory of a step, GiB"}, y{"predicted step time, s"};
  x.add(0);
  size_t letters = 0;
  for (const auto* points : {&curve.lossless, &curve.lossy, &curve.presets}) {
    for (const CurvePoint& p : *points) {
      x.add(place(p).first);
      y.add(p.seconds);
      letters = std::max(letters, p.name.size());
    }
  }
  Chart svg("Step time against peak memory", x, y, letters, /*keys=*/false);
  const auto dots = [&](const std::vector<CurvePoint>& points, size_t colour, double radius) {
    for (const CurvePoint& p : points) {
      svg.dot(place(p), colour, radius,
              formatted("%s: %s, %.4g s", p.name.c_str(), format_bytes(p.peak).c_str(), p.seconds));
    }
  };
  const auto line = [&](const std::vector<CurvePoint>& points, size_t colour) {
    Curve places;
    std::ranges::transform(points, std::back_inserter(places), place);
    svg.line(places, colour, 2.5);
    dots(points, colour, 3);
  };
  line(curve.lossy, 2);
  line(curve.lossless, 1);
  dots(curve.presets, 0, 6);
  for (const CurvePoint& p : curve.presets) svg.label(place(p), 0, p.name);
  return svg.svg();
}

}  // namespace

PlanCurve plan_curve(const Plans& plans) {
  const Speed speed = plans.speed();
  const SegmentGroups groups(plans.request(Policy::preset("off")));
  COMPACT_CHECK(!groups.segments().empty(),
                "--pareto is for networks that are made of segments, as language models, encoders "
                "and residual networks");
  PlanCurve curve;
  for (const char* name : {"off", "exact", "recompute", "compact-paper"}) {
    try {
      const StepRequest step = plans.request(Policy::preset(name));
      curve.presets.push_back(preset_point(name, step, groups, speed));
    } catch (const InputError&) {  // it is for other networks
    }
  }
  const auto best = [&](const char* name, const char* allow) {
    TrainConfig c = plans.config();
    c.allow = allow;
    return sweep(name, *plans.with(c).search(speed), curve.presets[0].peak);
  };
  curve.lossless = best("lossless", "lossless");
  const std::string lossy = Variants::any_projectable(groups) ? "quantize,project" : "quantize";
  curve.lossy = best("lossy", lossy.c_str());
  std::erase_if(curve.lossy, [&](const CurvePoint& p) {
    return std::ranges::any_of(curve.lossless, [&](const CurvePoint& exact) {
      return exact.peak <= p.peak && exact.seconds <= p.seconds;
    });
  });
  const std::string head = formatted("  %-16s %12s %14s %16s %14s\n", "policy", "peak", "step s",
                                     "added TFLOP", "gradient error");
  curve.text = cat("predicted step time against peak; speed: ", speed.source, "\n", head,
                   table_of(curve.presets), table_of(curve.lossless), table_of(curve.lossy),
                   "a row again: --preset auto --budget PEAK, lossy with --allow ", lossy,
                   "; --json has the flags of each, to the byte\n");
  curve.json["speed"] = speed.source;
  curve.json["presets"] = json_of(curve.presets);
  curve.json["lossless"] = json_of(curve.lossless, "lossless");
  curve.json["lossy"] = json_of(curve.lossy, lossy);
  const TrainConfig& c = plans.config();
  const Task& task = plans.task();
  curve.title = "What memory buys";
  curve.subtitle =
      cat(c.model.empty() ? c.model_name_or_path : c.model, ", ", c.dtype, ", ",
          c.per_device_train_batch_size, task.units > 1 ? cat(" \u00d7 ", task.units) : "", " ",
          task.batch_unit(), "; speed: ", speed.source);
  return curve;
}

void write_curve_page(const PlanCurve& curve, const std::string& path) {
  const std::string body =
      "<p class=\"legend\"><span><span class=\"key s1\"></span>cheapest lossless policy</span>"
      "<span><span class=\"key s2\"></span>where nothing lossless fits: moments in 16 and 8 bits, "
      "slots in 8, 4 or 2 bits, then projected gradients</span><span><span class=\"key "
      "s0\"></span>presets</span></p>\n"
      "<div class=\"chart\">" +
      svg_of(curve) + "</div>\n";
  write_file_atomically(path, html_page(curve.title, curve.subtitle, body));
}

}  // namespace compact
