// SPDX-License-Identifier: Apache-2.0
// Settings of a whole network beside the slots of its segments: how moments are held, which
// gradients are projected, how the loss is cut into chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compact/plan/groups.h"

namespace compact {

// Allowed, in this order: nothing; moments outside of the device, on the host or a disk, then
// weights, too; losses: the precision of moments where these are on the device, and then of what
// segments keep (8, 4 or 2 bits, segment by segment); gradients and moments of their matrices in a
// random projection, with what was given up before or, where that takes less, without.
struct Allowed {
  bool quantize = false, project = false, offload = false, disk = false;
  // "lossless", or some of the four joined by commas. Throws InputError on another.
  static Allowed parse(const std::string& text);
  std::string str() const;
  bool all_of(const Allowed& other) const {
    return quantize >= other.quantize && project >= other.project && offload >= other.offload &&
           disk >= other.disk;
  }
  bool operator==(const Allowed&) const = default;
};

struct Variant {
  std::string moments;    // type of all moments; empty: as asked for
  bool outside = false;   // moments are where Allowed says
  bool weights = false;   // weights are
  bool round = false;     // what segments keep may be held in fewer bits
  double rank = 0;        // of projected gradients; 0: none
  int64_t projected = 0;  // segments that have such, the last ones: their gradients come first
  int64_t chunk = 0;      // tokens of the loss at a time; 0: its logits are not cut
};

// The variants of one network and step, as lines of policies.
class Variants {
 public:
  // Throws InputError where gradients may be projected and none can be, and where a place of
  // moments is not for the device.
  // `moments`: how all are held where no policy says it; empty: no policy can. `chunks`: tokens of
  // the loss at a time that are tried beside the usual. `weights`: whether they may lie elsewhere.
  Variants(const SegmentGroups& groups, const StepShape& step, const std::string& moments,
           Allowed allowed, std::vector<int64_t> chunks = {}, bool weights = true);

  static bool any_projectable(const SegmentGroups& groups);

  // Ways to lose nothing, then precision, then more and more of the gradient.
  const std::vector<Variant>& levels() const { return levels_; }
  // Tokens of a chunk that the loss may have, the most first; {0} where it has none.
  const std::vector<int64_t>& chunks() const { return chunks_; }
  // The candidates for the least memory: the smallest, and that of all tokens. One chunk
  // makes the head's gradient in its own type, several sum it in f32.
  std::vector<int64_t> least_chunks() const;
  // Whether the loss is made in several chunks then.
  bool cuts(int64_t chunk) const { return chunk > 0 && chunk < groups_.tokens(); }
  // How many segments have gradients that can be projected; the place of each.
  int64_t projectable() const { return static_cast<int64_t>(projectable_.size()); }
  // Whether the gradients of a segment, by its place, are projected.
  bool projects(const Variant& v, size_t segment) const;
  std::string lines(const Variant& v) const;
  // Seconds that chunks of so many tokens add to a step.
  double chunk_seconds(int64_t chunk, double bytes_per_second) const;
  // Mean E|g' - g|^2 / |g|^2 of the gradients of all matrices, by their elements.
  double projection_error(const Policy& policy) const;

 private:
  const SegmentGroups& groups_;
  StepShape step_;
  std::string place_;    // that is allowed; or empty
  std::string outside_;  // moments that are asked for, with that place
  std::vector<Variant> levels_;
  std::vector<int64_t> chunks_;
  std::vector<size_t> projectable_;
};

}  // namespace compact
