// SPDX-License-Identifier: Apache-2.0
// The role of a slot in its network, under any name: `slot role:norm = recompute` holds for every
// model that gives roles to its slots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

enum class Role : uint8_t {
  kNone,  // tensors that plain operations save have only names
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
  // in networks of plain operations
  kCheap,
  kHeavy,
};

struct RoleInfo {
  Role role;
  std::string name, summary;
};
// All but kNone.
std::span<const RoleInfo> roles();
const std::string& name_of(Role role);  // not kNone

// "norm" or "{norm,product}"; each once, in the order of roles(). Throws InputError, with a
// suggestion, on an unknown role.
std::vector<Role> parse_roles(std::string_view text);

// The object that a line of a policy matches: a slot, or a parameter, which has only a name.
struct NamedRole {
  std::string name;
  Role role = Role::kNone;
  bool in_tiles = false;  // of slots: a treatment `tile` is carried out
};

}  // namespace compact
