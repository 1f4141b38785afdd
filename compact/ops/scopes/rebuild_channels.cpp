// SPDX-License-Identifier: Apache-2.0
// Rebuild's part that keeps channels apart in codes.
#include <algorithm>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {

std::optional<CodeRows> channels_of(const at::Tensor& t, const TapeNode& n, int64_t elements) {
  if (t.is_non_overlapping_and_dense() && t.numel() == elements) {
    return rows_of(t, Along::kChannels);
  }
  const Geometry& g = n.geometry;
  if (t.size(1) < 2 || g.bytes() != n.bytes || g.type != t.scalar_type()) return std::nullopt;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    const int64_t count = g.sizes[d], apart = g.strides[d];
    if (count > 1 && apart == t.stride(1)) {
      return CodeRows{.outer = elements / (count * apart), .rows = count, .inner = apart};
    }
  }
  return std::nullopt;
}

void Rebuild::part_channels(TapeNode& n, const CodeRows& channels) {
  if (channels.rows <= std::max<int64_t>(1, n.channels.rows)) return;
  n.channels = channels;
  if (n.coded_bytes >= 0 && n.how.content() == Content::kRounded) {
    n.how = n.how.by_channels();
    n.coded_bytes =
        n.how.codec()->bytes(channels.rows, channels.length(), n.coded).value_or(n.bytes);
    if (n.codes.defined()) hold_again(n);
  }
  if (n.mode != TapeNode::Mode::kRecipe) return;
  for (const Record::Input& input : n.record->inputs) {
    if (input.node->bytes == n.bytes) part_channels(*input.node, channels);
  }
}

}  // namespace compact
