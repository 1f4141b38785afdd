// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/sensitivity.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/codec.h"

namespace compact {
namespace {

constexpr int kFine = 8, kCoarse = 4;

std::string line(const AdaptiveTensor& t, int bits) {
  return cat("slot ", t.name, " = ", t.treatment.with_bits(bits).text(), "\n");
}

// All in 8 bits but the coarse ones. Whatever else there is stays as it is, in few bits.
Policy probe_policy(std::span<const AdaptiveTensor> tensors, const std::vector<bool>& coarse) {
  std::string text = cat("slot * = quantize:bits=", kFine, "\n");
  for (size_t i = 0; i < tensors.size(); ++i) text += line(tensors[i], coarse[i] ? kCoarse : kFine);
  return Policy::parse(text, "probe");
}

bool has_zero_code(const AdaptiveTensor& t) { return t.treatment.bits()->zero_code; }

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

int64_t bytes_of(const AdaptiveTensor& t, int bits) {
  const auto bytes = t.treatment.with_bits(bits).codec()->bytes(1, t.elements, t.type);
  COMPACT_CHECK(bytes, "[bits] the bytes of `", t.treatment.text(), "` are not known beforehand");
  return *bytes;
}

}  // namespace

std::vector<double> sensitivity_by_groups(const GradientProbe& probe,
                                          std::span<const AdaptiveTensor> tensors, int runs,
                                          uint64_t noise) {
  COMPACT_CHECK(runs >= 2, "[bits] at least 2 probes are needed, not ", runs);
  const at::Tensor fine = probe(probe_policy(tensors, std::vector<bool>(tensors.size())), noise);
  std::vector<std::vector<bool>> groups;
  std::vector<at::Tensor> errors;
  for (int k = 0; k < runs; ++k) {
    std::vector<bool> coarse(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      coarse[i] = philox(derive(noise, 1 + static_cast<uint64_t>(k)), i).v[0] & 1;
    }
    errors.push_back(probe(probe_policy(tensors, coarse), noise).sub_(fine));
    groups.push_back(std::move(coarse));
  }
  std::vector<Equation> equations;
  double mean = 0;
  for (size_t a = 0; a < groups.size(); ++a) {
    for (size_t b = a; b < groups.size(); ++b) {
      Equation e{std::vector<bool>(tensors.size()),
                 errors[a].mul(errors[b]).sum(at::kDouble).item<double>()};
      for (size_t i = 0; i < tensors.size(); ++i) e.members[i] = groups[a][i] && groups[b][i];
      if (a == b) mean += 2 * e.sum / static_cast<double>(groups.size() * tensors.size());
      equations.push_back(std::move(e));
    }
  }
  std::vector<double> result = nonnegative_fit(equations, mean, tensors.size());
  // A sensitivity too small for the fit is still above 0.
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] =
        std::max(result[i], 0.02 * mean) / uniform_error(kCoarse, has_zero_code(tensors[i]));
  }
  return result;
}

std::vector<AdaptiveTensor> adaptive_tensors(std::span<const CodecTensor> tensors) {
  std::vector<AdaptiveTensor> all;
  for (const CodecTensor& t : tensors) {
    const std::optional<CodecBits> bits = t.treatment.bits();
    if (!bits || !bits->average) continue;
    all.push_back({t.name, t.treatment, t.elements, t.type, *bits->average});
  }
  return all;
}

BitPlan adaptive_bits(std::span<const AdaptiveTensor> tensors,
                      std::span<const double> sensitivity) {
  COMPACT_CHECK(sensitivity.size() == tensors.size(), "[bits] ", tensors.size(), " tensors have ",
                sensitivity.size(), " sensitivities");
  std::vector<TensorBits> choices;
  double budget = 0;
  BitPlan plan;
  for (const AdaptiveTensor& t : tensors) {
    COMPACT_CHECK(t.average >= 1 && t.average <= 8, "[bits] bits of `", t.name,
                  "` must be from 1 to 8 on average, are ", t.average);
    TensorBits b{.name = t.name, .sensitivity = sensitivity[choices.size()]};
    const bool zero = has_zero_code(t);
    const std::vector<int> bits = t.treatment.bits()->choices;
    for (const int n : bits) {
      b.choices.push_back({n, bytes_of(t, n), uniform_error(n, zero)});
    }
    // On the line between the neighbours of the average.
    for (size_t k = 0; k + 1 < b.choices.size(); ++k) {
      const BitChoice &low = b.choices[k], &high = b.choices[k + 1];
      if (t.average > high.bits && k + 2 < b.choices.size()) continue;
      const double part = std::max(0.0, (t.average - low.bits) / (high.bits - low.bits));
      budget += static_cast<double>(low.bytes) + static_cast<double>(high.bytes - low.bytes) * part;
      break;
    }
    plan.uniform_error +=
        b.sensitivity * uniform_error(std::max(t.average, zero ? 2.0 : 1.0), zero);
    choices.push_back(std::move(b));
  }
  plan.allocation = allocate_exact(choices, static_cast<int64_t>(budget));
  std::string text;
  for (size_t i = 0; i < tensors.size(); ++i) {
    plan.bits.push_back(choices[i].choices[plan.allocation.chosen[i]].bits);
    text += line(tensors[i], plan.bits.back());
  }
  plan.policy = Policy::parse(text, "bits");
  return plan;
}

}  // namespace compact
