// SPDX-License-Identifier: Apache-2.0
// What a slot is in its network, whatever its name: policies may say `slot role:norm = recompute`,
// and every model obeys that says which of its slots is one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

enum class Role : uint8_t {
  kNone,  // tensors that plain operations save have names alone
  // of blocks of transformers
  kInput,
  kResidual,
  kNorm,
  kQkv,
  kHeads,
  kAttention,
  kAdded,
  kGateUp,
  kGate,
  kProduct,
  kPreActivation,
  kActivation,
  // of convolutional blocks
  kImage,
  kMap,
  kConv,
  kRelu,
  kSigns,
  // after the blocks
  kHead,
  kLogits,
};

struct RoleInfo {
  Role role;
  std::string name, summary;
};
// All but kNone.
std::span<const RoleInfo> roles();
const std::string& name_of(Role role);  // not kNone

// "norm" or "{norm,product}"; each once, in the order of roles(). Throws InputError, with a
// suggestion, on a name that is no role's.
std::vector<Role> parse_roles(std::string_view text);

// A slot as a policy knows it, or another thing that has a name alone.
struct NamedRole {
  std::string name;
  Role role = Role::kNone;
};

}  // namespace compact
