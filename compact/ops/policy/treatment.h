// SPDX-License-Identifier: Apache-2.0
// Treatments of slots, parsed once; and the table of all treatments other than codecs: of slots,
// gradients, optimizer moments and weights.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/codecs/codec.h"

namespace compact {

enum class PolicyKind : uint8_t { kSlot, kGrad, kMoment, kWeight };
// The words that policy lines start with, in the order of PolicyKind.
inline constexpr std::array<const char*, 4> kPolicyKinds = {"slot", "grad", "moment", "weight"};
inline const char* name_of(PolicyKind kind) { return kPolicyKinds[static_cast<size_t>(kind)]; }
enum class Storage : uint8_t { kKeep, kRecompute, kSketch, kChunk, kCodec };

struct TreatmentInfo {
  PolicyKind kind;
  std::string name, settings, summary;
  Storage storage = Storage::kKeep;  // of slots
};
std::span<const TreatmentInfo> treatments();

// The most that a forward pass may hold, with what its backward pass rebuilds at a time: bytes, or
// a part, below 1, of the bytes that it saves.
struct ByteBudget {
  int64_t bytes = 0;
  double part = 0;
  explicit operator bool() const { return bytes > 0 || part > 0; }
};
// The budget of `recompute:budget=10GiB`, or `=40%`; false of other treatments. Throws InputError
// on other words.
ByteBudget budget_of(const Spec& treatment);

// Throws InputError, with a suggestion, on a treatment that is not in the table, an unknown setting
// or a value out of range, and on more than one.
void check_treatment(PolicyKind kind, const std::vector<Spec>& chain);

// `keep`, `recompute`, `tile:tokens=N`, `sketch`, `chunk:tokens=N`, or codecs joined by `+`. Copies
// share what was parsed; it never changes.
class Treatment {
 public:
  Treatment();  // keep
  // Throws InputError, with a suggestion, on an unknown name or setting or a value out of range.
  explicit Treatment(std::vector<Spec> chain);
  static Treatment parse(std::string_view text) { return Treatment(Spec::parse_chain(text)); }
  // `mask:of=sign`: where floats are above 0, in a bit each.
  static const Treatment& of_signs();

  Storage storage() const { return parsed_->storage; }
  const CodecPtr& codec() const { return parsed_->codec; }  // null unless storage is kCodec
  // The part of a tensor that it preserves.
  Content content() const { return parsed_->content; }
  // How many tokens of it are rebuilt at a time; 0: not `tile`, or all of them.
  int64_t tile() const { return parsed_->tile; }
  // The codecs, or the one treatment that is not a codec; first(): the first of them.
  const std::vector<Spec>& chain() const { return parsed_->chain; }
  const Spec& first() const { return parsed_->chain[0]; }
  // Text that parses to the same.
  const std::string& text() const { return parsed_->text; }

  // A treatment like this one from which signs can be read: itself, or one with a code for 0;
  // nullopt: there is none (1 bit, means).
  std::optional<Treatment> with_signs() const;
  // The same with codes of which no group has values of two channels, where the policy does not say
  // otherwise.
  Treatment by_channels() const;
  // The same for rows of a tensor's last dimension, none of which shares a scale with another one.
  Treatment by_rows() const;
  // The same for rows of `row` values, of which that dimension, of `width`, has one or several:
  // where groups would share a scale, can be so short, and the policy does not say what they run
  // along.
  Treatment by_rows(int64_t row, int64_t width) const;
  // The same with `codec` in place of its first codec, or of the treatment that is not a codec.
  Treatment beginning_with(const Spec& codec) const;

  // Bits of the first codec; nullopt where it has no choice of bits. with_bits: the same treatment
  // with its first codec in so many bits, one of its choices.
  std::optional<CodecBits> bits() const;
  Treatment with_bits(int bits) const;
  // The same with half the bits or fewer in every codec that can have them, and no higher average;
  // nullopt: no codec can.
  std::optional<Treatment> halved() const;

  bool operator==(const Treatment& other) const { return text() == other.text(); }

 private:
  struct Parsed {
    std::vector<Spec> chain;
    std::string text;
    Storage storage = Storage::kKeep;
    CodecPtr codec = nullptr;
    Content content = Content::kExact;
    int64_t tile = 0;
  };
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace compact
