// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/variant.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/meta_device.h"
#include "compact/codecs/projection.h"
#include "compact/ops/functions/loss.h"
#include "compact/optim/moment.h"
#include "compact/plan/options.h"

namespace compact {
namespace {

constexpr double kRanks[] = {0.5, 0.25, 0.125};

constexpr std::pair<const char*, bool Allowed::*> kAllowed[] = {{"quantize", &Allowed::quantize},
                                                                {"project", &Allowed::project},
                                                                {"offload", &Allowed::offload},
                                                                {"disk", &Allowed::disk}};

bool any_matrix(const SegmentGroups& groups) {
  return std::ranges::any_of(groups.segments(),
                             [](const SegmentInfo& s) { return !s.matrices.empty(); });
}

bool projectable_segment(const SegmentInfo& s) {
  return std::ranges::any_of(s.matrices, &SegmentMatrix::projectable);
}

}  // namespace

Allowed Allowed::parse(const std::string& text) {
  Allowed allowed;
  for (const std::string& part : split(text, ',')) {
    std::vector<std::string> known = {"lossless"};
    for (const auto& [name, member] : kAllowed) {
      known.emplace_back(name);
      if (part == name) allowed.*member = true;
    }
    COMPACT_CHECK(std::ranges::find(known, part) != known.end(), "--allow: no such value `", part,
                  "`", suggestion(part, known));
  }
  return allowed;
}

std::string Allowed::str() const {
  std::string text;
  for (const auto& [name, member] : kAllowed) {
    if (this->*member) text += cat(text.empty() ? "" : ",", name);
  }
  return text.empty() ? "lossless" : text;
}

Variants::Variants(const SegmentGroups& groups, const StepShape& step, const std::string& moments,
                   Allowed allowed, std::vector<int64_t> chunks, bool weights)
    : groups_(groups), step_(step), levels_({{}}), chunks_({0}) {
  if (const at::Tensor& w = groups.head(); w.defined()) {
    const int64_t usual =
        LossTreatment::from(Treatment::parse("chunk"), w.size(0), device_type_of(w)).chunk_tokens;
    chunks_.clear();
    // One chunk makes the head's gradient in its own type: where all logits take no more than the
    // f32 sum of several would.
    const int64_t tokens = groups.tokens();
    const auto logits = tokens * static_cast<int64_t>(w.element_size());
    if (tokens > usual && w.scalar_type() != at::kFloat && logits <= 4 * w.size(1)) {
      chunks_.push_back(tokens);
    }
    chunks.insert(chunks.end(), {usual, usual / 4 / 64 * 64, 64});
    std::ranges::sort(chunks, std::greater{});
    for (const int64_t chunk : chunks) {
      // One that holds all tokens is enough.
      const int64_t most = chunks_.empty() ? chunk + 1 : std::min(chunks_.back(), tokens);
      if (chunk >= 64 && chunk < most) chunks_.push_back(chunk);
    }
  }
  for (size_t i = 0; i < groups.segments().size(); ++i) {
    if (projectable_segment(groups.segments()[i])) projectable_.push_back(i);
  }
  const bool cpu = meta_device() == c10::kCPU;
  COMPACT_CHECK(!allowed.offload || !cpu,
                "--allow offload: on a CPU the host's memory is the device's; --allow disk");
  COMPACT_CHECK(!allowed.disk || cpu, "--allow disk is for a CPU: --allow offload");
  const bool outside = (allowed.offload || allowed.disk) && !moments.empty() &&
                       moment_kind(moments).place == MemoryPlace::kDevice;
  if (allowed.offload || allowed.disk) place_ = allowed.disk ? "disk" : "offload";
  if (outside) {
    outside_ = cat(moments, "+", place_);
    levels_.push_back({.outside = true});
  }
  if (!place_.empty() && weights && any_matrix(groups)) {
    levels_.push_back({.outside = outside, .weights = true});
  }
  if (allowed.quantize) {
    const bool on_device = !outside && moment_kind(moments).place == MemoryPlace::kDevice;
    const auto in = [&](const char* type) {
      levels_.push_back(levels_.back());
      levels_.back().moments = type;
    };
    if (on_device && moments == "f32") in("bf16");
    if (on_device && !moments.empty() && moments != "f8") in("f8");
    levels_.push_back(levels_.back());
    levels_.back().round = true;
  }
  if (allowed.project) {
    COMPACT_CHECK(!projectable_.empty(),
                  "--allow project: this network has no matrices whose gradients can be projected");
    const Variant last = levels_.back();
    for (const double rank : kRanks) {
      levels_.push_back(last);
      levels_.back().rank = rank;
      // Unpacking f8 takes memory, too, which small moments may not save.
      if (allowed.quantize) {
        levels_.push_back({.outside = last.outside, .weights = last.weights, .rank = rank});
      }
    }
  }
}

bool Variants::any_projectable(const SegmentGroups& groups) {
  return std::ranges::any_of(groups.segments(), projectable_segment);
}

std::vector<int64_t> Variants::least_chunks() const {
  std::vector<int64_t> least = {chunks_.back()};
  if (chunks_.size() > 1 && !cuts(chunks_.front())) least.push_back(chunks_.front());
  return least;
}

bool Variants::projects(const Variant& v, size_t segment) const {
  const auto first = projectable_.end() - v.projected;
  return std::find(first, projectable_.end(), segment) != projectable_.end();
}

std::string Variants::lines(const Variant& v) const {
  const std::vector<SegmentInfo>& segments = groups_.segments();
  std::string text = keep_lines(segments);
  if (v.chunk > 0) text += cat("slot loss.logits = chunk:tokens=", v.chunk, "\n");
  const std::string& moments = v.outside ? outside_ : v.moments;
  if (!moments.empty()) text += cat("moment * = ", moments, "\n");
  if (v.weights) text += cat("weight * = ", place_, "\n");
  // Updating inside the backward pass costs nothing and loses nothing where it may be done.
  if (step_.may_release()) text += "grad * = full:release=true\n";
  if (v.projected == 0) return text;
  const std::string how =
      cat(" = project:rank=", v.rank, ",type=srht,share=true,period=200,scale=1,carry=true",
          step_.may_release() ? ",release=true\n" : "\n");
  // By what follows the segment's name, in the order first seen.
  std::vector<std::string> all, rests;
  std::vector<std::vector<std::string>> of_rest;
  for (const SegmentInfo& s : segments) all.push_back(s.name);
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!projects(v, i)) continue;
    const SegmentInfo& s = segments[i];
    for (const SegmentMatrix& m : s.matrices) {
      if (!m.projectable) continue;
      const std::string rest = m.name.substr(s.name.size());
      const auto found = std::ranges::find(rests, rest);
      const auto at = static_cast<size_t>(found - rests.begin());
      if (found == rests.end()) {
        rests.push_back(rest);
        of_rest.emplace_back();
      }
      of_rest[at].push_back(s.name);
    }
  }
  for (size_t i = 0; i < rests.size(); ++i) {
    for (const std::string& pattern : patterns_of(of_rest[i], all)) {
      text += cat("grad ", pattern, rests[i], how);
    }
  }
  return text;
}

// Every one of several chunks adds its part of the head's gradient to an f32 sum.
double Variants::chunk_seconds(int64_t chunk, double bytes_per_second) const {
  if (!cuts(chunk)) return 0;
  const auto sums =
      static_cast<double>((groups_.tokens() + chunk - 1) / chunk * step_.accumulation);
  return sums * 12.0 * static_cast<double>(groups_.head().numel()) / bytes_per_second;
}

double Variants::projection_error(const Policy& policy) const {
  double sum = 0, all = 0;
  for (const SegmentInfo& segment : groups_.segments()) {
    for (const SegmentMatrix& m : segment.matrices) {
      const auto elements = static_cast<double>(m.out) * static_cast<double>(m.in);
      all += elements;
      const Spec grad = policy.grad(m.name);
      if (grad.name != "project" || !m.projectable) continue;
      const auto rank = static_cast<double>(resolve_rank(grad.number("rank", 0.25), m.in));
      sum += elements * (static_cast<double>(m.in) / rank - 1);
    }
  }
  return sum > 0 ? sum / all : 0;
}

}  // namespace compact
