// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/sensitivity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/codec.h"

namespace compact {
namespace {

constexpr int kFine = 8, kCoarse = 4;

// All in 8 bits but those that `coarse` names.
Policy probe_policy(std::span<const std::string> names, const std::vector<bool>& coarse) {
  std::string text = cat("slot * = quantize:bits=", kFine, "\n");
  for (size_t i = 0; i < names.size(); ++i) {
    if (coarse[i]) text += cat("slot ", names[i], " = quantize:bits=", kCoarse, "\n");
  }
  return Policy::parse(text, "probe");
}

double squared_distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).square().sum(at::kDouble).item<double>();
}

// A sum of unknowns, as measured.
struct Equation {
  std::vector<bool> members;
  double sum;
};

// The least squares solution with none below 0, by coordinate descent. One equation more for each
// unknown says that it is the mean, which decides what the others leave open.
std::vector<double> nonnegative_fit(const std::vector<Equation>& equations, double mean,
                                    size_t count) {
  std::vector<double> x(count, mean), left;
  for (const Equation& e : equations) {
    left.push_back(e.sum - mean * static_cast<double>(std::ranges::count(e.members, true)));
  }
  for (int sweep = 0; sweep < 1000; ++sweep) {
    double moved = 0;
    for (size_t i = 0; i < count; ++i) {
      double sum = mean - x[i], weight = 1;
      for (size_t k = 0; k < equations.size(); ++k) {
        if (equations[k].members[i]) sum += left[k], ++weight;
      }
      const double to = std::max(0.0, x[i] + sum / weight), by = to - x[i];
      for (size_t k = 0; k < equations.size(); ++k) {
        if (equations[k].members[i]) left[k] -= by;
      }
      x[i] = to;
      moved = std::max(moved, std::abs(by));
    }
    if (moved <= 1e-9 * mean) break;
  }
  return x;
}

std::string quantize(int bits) { return cat("quantize:bits=", bits); }

}  // namespace

std::vector<double> sensitivity_by_tensor(const GradientProbe& probe,
                                          std::span<const std::string> names, uint64_t noise) {
  const at::Tensor fine = probe(probe_policy(names, std::vector<bool>(names.size())), noise);
  std::vector<double> result;
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<bool> coarse(names.size(), false);
    coarse[i] = true;
    const at::Tensor g = probe(probe_policy(names, coarse), noise);
    result.push_back(squared_distance(g, fine) / uniform_error(kCoarse));
  }
  return result;
}

std::vector<double> sensitivity_by_groups(const GradientProbe& probe,
                                          std::span<const std::string> names, int runs,
                                          uint64_t noise) {
  COMPACT_CHECK(runs >= 2, "[bits] at least 2 probes are needed, not ", runs);
  const at::Tensor fine = probe(probe_policy(names, std::vector<bool>(names.size())), noise);
  std::vector<std::vector<bool>> groups;
  std::vector<at::Tensor> errors;
  for (int k = 0; k < runs; ++k) {
    std::vector<bool> coarse(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      coarse[i] = philox(derive(noise, 1 + static_cast<uint64_t>(k)), i).v[0] & 1;
    }
    errors.push_back(probe(probe_policy(names, coarse), noise).sub_(fine));
    groups.push_back(std::move(coarse));
  }
  std::vector<Equation> equations;
  double mean = 0;
  for (size_t a = 0; a < groups.size(); ++a) {
    for (size_t b = a; b < groups.size(); ++b) {
      Equation e{std::vector<bool>(names.size()), errors[a].mul(errors[b]).sum(at::kDouble).item<double>()};
      for (size_t i = 0; i < names.size(); ++i) e.members[i] = groups[a][i] && groups[b][i];
      if (a == b) mean += 2 * e.sum / static_cast<double>(groups.size() * names.size());
      equations.push_back(std::move(e));
    }
  }
  std::vector<double> result = nonnegative_fit(equations, mean, names.size());
  // What the fit could not tell from nothing is not nothing.
  for (double& c : result) c = std::max(c, 0.02 * mean) / uniform_error(kCoarse);
  return result;
}

std::vector<std::string> quantized_names(const SavedTensorReport& report) {
  std::vector<std::string> names;
  for (const SavedTensor& t : report.tensors) {
    if (!t.shared && t.treatment.starts_with("quantize")) names.push_back(t.name);
  }
  return names;
}

BitPlan adaptive_bits(const SavedTensorReport& report, std::span<const double> sensitivity,
                      double bits) {
  COMPACT_CHECK(bits >= 1 && bits <= 8, "[bits] bits on average must be from 1 to 8, are ", bits);
  const std::vector<std::string> names = quantized_names(report);
  COMPACT_CHECK(sensitivity.size() == names.size(), "[bits] ", names.size(), " tensors have ",
                sensitivity.size(), " sensitivities");
  constexpr int kBits[] = {1, 2, 4, 8};
  std::vector<TensorBits> tensors;
  double budget = 0, uniform = 0;
  for (const SavedTensor& t : report.tensors) {
    if (t.shared || !t.treatment.starts_with("quantize")) continue;
    const int64_t elements = t.bytes / static_cast<int64_t>(c10::elementSize(t.type));
    TensorBits b{.name = t.name, .sensitivity = sensitivity[tensors.size()]};
    // A ReLU's result needs 2 bits for its mask.
    const bool positive = t.treatment.find("levels=positive") != std::string::npos;
    for (const int n : kBits) {
      if (positive && n == 1) continue;
      b.choices.push_back(
          {n, *make_codec(quantize(n))->bytes(1, elements, t.type), uniform_error(n)});
    }
    // On the line between the neighbours of `bits`.
    for (size_t k = 0; k + 1 < std::size(kBits); ++k) {
      const double low = kBits[k], high = kBits[k + 1];
      if (bits < low || bits > high) continue;
      const auto at = [&](double n) {
        return static_cast<double>(
            *make_codec(quantize(static_cast<int>(n)))->bytes(1, elements, t.type));
      };
      budget += at(low) + (at(high) - at(low)) * (bits - low) / (high - low);
      break;
    }
    const double top = std::exp2(bits) - 1;
    uniform += b.sensitivity / (top * top);
    tensors.push_back(std::move(b));
  }
  BitPlan plan{.allocation = allocate_exact(tensors, static_cast<int64_t>(budget)),
               .uniform_error = uniform};
  std::string text;
  for (size_t i = 0; i < tensors.size(); ++i) {
    text += cat("slot ", names[i], " = ",
                quantize(tensors[i].choices[plan.allocation.chosen[i]].bits), "\n");
  }
  plan.policy = Policy::parse(text, "bits");
  return plan;
}

}  // namespace compact
