// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/policy/role.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"

namespace compact {

std::span<const RoleInfo> roles() {
  static const RoleInfo all[] = {
      {Role::kInput, "input", "what a block of a transformer is given"},
      {Role::kResidual, "residual", "the sum between the attention and the MLP of a block"},
      {Role::kNorm, "norm", "what a norm gives to the matrix after it"},
      {Role::kQkv, "qkv", "queries, keys and values"},
      {Role::kHeads, "heads",
       "the same where queries and keys have norms of their own, after these"},
      {Role::kAttention, "attention", "what attention gives to its output matrix"},
      {Role::kAdded, "added",
       "what attention or MLP give to a norm of their own, before they are added (Gemma)"},
      {Role::kGateUp, "gate_up", "both products of a gated MLP, before its activation"},
      {Role::kGate, "gate", "the gate of a gated MLP, after its activation"},
      {Role::kProduct, "product", "gate times up, which the last matrix of a gated MLP reads"},
      {Role::kPreActivation, "pre_activation", "what the activation of an MLP without gate reads"},
      {Role::kActivation, "activation", "what the activation of an MLP without gate gives"},
      {Role::kImage, "image", "what a convolutional network is given"},
      {Role::kMap, "map", "what the convolutions and the shortcut that begin a block read"},
      {Role::kConv, "conv", "what a convolution gives to the norm after it"},
      {Role::kRelu, "relu", "what a ReLU inside of a convolutional block gives"},
      {Role::kSigns, "signs", "what a ReLU gives of which nothing but signs is read backward"},
      {Role::kHead, "head", "what the head reads"},
      {Role::kLogits, "logits", "what the loss reads"},
      {Role::kCheap, "cheap",
       "what plain operations that move memory, rather than compute, make of tensors that are "
       "held"},
      {Role::kHeavy, "heavy",
       "what products, convolutions and attention of plain operations give: all that is rebuilt is "
       "kept within the budget of its line"},
  };
  return all;
}

const std::string& name_of(Role role) {
  return std::ranges::find(roles(), role, &RoleInfo::role)->name;
}

std::vector<Role> parse_roles(std::string_view text) {
  const bool several = text.starts_with('{') && text.ends_with('}');
  if (!several) return {named(roles(), text, "no role").role};
  std::vector<Role> found;
  for (const std::string& name : split(text.substr(1, text.size() - 2), ',')) {
    found.push_back(named(roles(), name, "no role").role);
  }
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

}  // namespace compact
