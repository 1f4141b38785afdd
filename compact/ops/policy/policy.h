// SPDX-License-Identifier: Apache-2.0
// The policy: how each saved tensor, gradient, optimizer moment and weight is held. Lines of text
//   slot PATTERN = treatment     slot layers.*.mlp.gate_up = recompute
//   slot PATTERN = codecs        slot layers.*.attn.qkv = quantize:bits=4+offload
//   slot role:ROLE = treatment   slot role:{norm,product} = recompute
//   grad PATTERN = gradient      grad layers.*.attn.qkv = project:rank=0.25,type=srht
//   moment PATTERN = moment      moment * = bf16
//   weight PATTERN = place       weight layers.* = disk
// with `#` comments; layers.{0,2} and layers.{0..13} name some of them. A role (role.h) stands for
// all slots to which a model gives that role; braces hold several roles. The last line that matches
// a slot, by its name or by its role, holds. Presets are policies built into the program.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/spec.h"
#include "compact/codecs/memory_place.h"
#include "compact/ops/policy/role.h"
#include "compact/ops/policy/treatment.h"

namespace compact {

struct EmbeddedPreset {
  std::string name, text;
};
// The presets of presets/*.policy, by name.
std::span<const EmbeddedPreset> embedded_presets();

class Policy {
 public:
  // Throws InputError with source and line number on a malformed line, an unknown treatment or role
  // (with a suggestion), or a pattern that is given two different treatments in this text.
  static Policy parse(std::string_view text, const std::string& source);
  static Policy preset(const std::string& name);
  static Policy from_file(const std::string& path);

  // From now on its lines may match nothing, as lines of presets may.
  void make_general() {
    for (Line& line : lines_) line.general = true;
  }
  // The same for the lines that a preset has, too: a text may be a preset with some lines changed.
  // from_file() has done it.
  void make_copies_general();
  // Appends the lines of `other`, which override the ones here.
  void append(const Policy& other);

  // The treatment of a name; where no line matches: keep, full, an empty text for moments, and the
  // device for weights. What plain operations save is rebuilt whole where the line says `tile`.
  Treatment slot(std::string_view name, Role role = Role::kNone) const;
  Spec grad(std::string_view name) const;
  std::string moment(std::string_view name) const;
  MemoryPlace weight(std::string_view name) const;

  // Whether there is any line of a kind; whether one matches.
  bool has(PolicyKind kind) const;
  bool names(PolicyKind kind, std::string_view name, Role role = Role::kNone) const;
  // Whether every slot is kept; whether codecs round one.
  bool keeps_all() const;
  bool rounds() const;
  // The fewest bits with which a slot line starts whose bits are chosen while training; nullopt:
  // there is no such line. Throws InputError where a line's average is above the bits that it
  // starts with, which plans count on.
  std::optional<int64_t> fewest_open_bits() const;
  // Halves the bits of every slot line that can have fewer, and lowers its average to them where
  // its bits are chosen while training. Returns whether there was one.
  bool halve_bits();

  // Sets `key` in every `project` gradient. Returns how many lines it changed.
  int override_projection(std::string_view key, std::string_view value);

  // Whether a `project` line here sets `key` to another value than `value`.
  bool sets_projection(std::string_view key, std::string_view value) const;

  // Throws InputError where a pattern matches none of these, with a suggestion or the roles that
  // there are; and where a line says `tile` and none of the slots that it treats can be in tiles.
  // Lines of presets may match nothing, but not all of them. `among`: says of which
  // names these are some, as " of what is trained"; lines that freeze may then match others.
  void check_patterns(PolicyKind kind, std::span<const NamedRole> all,
                      const char* among = nullptr) const;

  // Text that parses to the same policy.
  std::string str() const;
  // The comment lines at the top of a preset: what it is for.
  const std::string& summary() const { return summary_; }

 private:
  struct Line {
    PolicyKind kind;
    std::string pattern;
    std::vector<Role> roles;  // of a pattern `role:...`
    Treatment slot;           // of slots
    Spec grad;                // of gradients
    std::string other;        // of moments and weights, as it is written
    std::string where;        // source:line
    bool general = false;     // of a preset: written for many models, may match nothing

    bool matches(std::string_view name, Role role) const;
    std::string text() const;  // with the end of line
    std::string treatment() const;
  };
  void check_tiles(std::span<const NamedRole> all) const;
  const Line* find(PolicyKind kind, std::string_view name, Role role = Role::kNone) const;
  std::vector<Line> lines_;
  std::string summary_;
};

}  // namespace compact
