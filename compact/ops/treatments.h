// SPDX-License-Identifier: Apache-2.0
// The table of treatments that policies may name beside codecs, and what their settings mean.
#pragma once

#include <span>
#include <string>

#include "compact/codecs/parameter.h"
#include "compact/ops/policy.h"
#include "compact/ops/segment.h"

namespace compact {

struct TreatmentInfo {
  PolicyKind kind;
  std::string name, settings, summary;
};
std::span<const TreatmentInfo> treatments();

// Throws InputError, with a suggestion, on an unknown treatment or setting or a value out of range.
// A slot may have a chain of codecs, all else has one treatment.
void check_treatment(PolicyKind kind, const std::vector<Spec>& chain);

// A slot of a segment, treated as the policy says.
Slot slot_of(const Policy& policy, const std::string& name, int64_t width);

// The carrier that `grad` asks for on a weight [out, in] of fused parts, or null for `full`.
// `key` is the parameter's own. Throws InputError on a rank that `in` cannot have.
std::shared_ptr<Carrier> make_carrier(const Spec& grad, const std::string& name,
                                      const at::Tensor& weight, const std::vector<int64_t>& parts,
                                      uint64_t key);

// `lr_scale` of a gradient treatment (full and project), 1 by default.
double lr_scale_of(const Spec& grad);

}  // namespace compact
