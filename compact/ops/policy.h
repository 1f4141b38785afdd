// SPDX-License-Identifier: Apache-2.0
// The policy: how each saved tensor, gradient and optimizer moment is held. Lines of text
//   slot PATTERN = treatment     slot layers.*.mlp.gate_up = recompute
//   slot PATTERN = codecs        slot layers.*.attn.qkv = quantize:bits=4+offload
//   grad PATTERN = gradient      grad layers.*.attn.qkv = project:rank=0.25,type=srht
//   moment PATTERN = moment      moment * = bf16
// with `#` comments; layers.{0,2} and layers.{0..13} name some of them. The last line that matches
// a name holds. Presets are policies built into the program.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/spec.h"

namespace compact {

enum class PolicyKind : uint8_t { kSlot, kGrad, kMoment };

struct EmbeddedPreset {
  std::string name, text;
};
// The presets of presets/*.policy, by name.
std::span<const EmbeddedPreset> embedded_presets();

class Policy {
 public:
  // Throws InputError with source and line number on a malformed line, an unknown treatment (with a
  // suggestion), or a pattern that is given two different treatments in this text.
  static Policy parse(std::string_view text, const std::string& source);
  static Policy preset(const std::string& name);
  static Policy from_file(const std::string& path);

  // From now on its lines may match nothing, as those of presets may.
  void make_general() {
    for (Line& line : lines_) line.general = true;
  }
  // Lines of `other` come after, and so above, the ones here.
  void append(const Policy& other);

  // The treatment of a name; where no line matches: keep, full, and an empty name for moments.
  // Of a chain of codecs slot() is the first, slot_text() all.
  Spec slot(std::string_view name) const { return find(PolicyKind::kSlot, name)[0]; }
  std::string slot_text(std::string_view name) const {
    return Spec::chain_str(find(PolicyKind::kSlot, name));
  }
  Spec grad(std::string_view name) const { return find(PolicyKind::kGrad, name)[0]; }
  Spec moment(std::string_view name) const { return find(PolicyKind::kMoment, name)[0]; }

  // Whether there is any line of a kind; whether one matches a name.
  bool has(PolicyKind kind) const;
  bool names(PolicyKind kind, std::string_view name) const;
  // Of slot lines with `adapt`, the fewest `bits`; none: no line leaves bits open. Throws
  // InputError where adapt is above bits, which plans count on.
  std::optional<int64_t> fewest_open_bits() const;
  // Halves the bits of every slot line that quantizes in more than one, and of what is open no more
  // than that. Returns whether there was one.
  bool halve_bits();

  // Sets `key` in every `project` gradient. Returns how many lines it changed.
  int override_projection(std::string_view key, std::string_view value);

  // Whether a `project` line here sets `key` to another value than `value`.
  bool sets_projection(std::string_view key, std::string_view value) const;

  // Throws InputError where a pattern matches none of the names, with a suggestion. Lines of
  // presets may match nothing.
  void check_patterns(PolicyKind kind, std::span<const std::string> names) const;

  // Text that parses to the same policy.
  std::string str() const;
  // The comment lines at the top of a preset: what it is for.
  const std::string& summary() const { return summary_; }

 private:
  struct Line {
    PolicyKind kind;
    std::string pattern;
    std::vector<Spec> treatment;  // one, or codecs after each other
    std::string where;            // source:line
    bool general = false;         // of a preset: written for many models, may match nothing
  };
  std::vector<Spec> find(PolicyKind kind, std::string_view name) const;
  std::vector<Line> lines_;
  std::string summary_;
};

}  // namespace compact
