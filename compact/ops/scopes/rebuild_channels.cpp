// SPDX-License-Identifier: Apache-2.0
// Rebuild's part that chooses which elements share scales of codes: of a row, or of a channel.
#include <algorithm>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {

constexpr int kPartDepth = 8;  // operations between a tensor and those that can_part() looks at

bool lies_alike(const Record::Input& input, const TapeNode& n) {
  const Geometry &a = input.geometry, &b = n.geometry;
  return input.node->bytes == n.bytes && input.node->geometry.type == b.type && a.type == b.type &&
         a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset;
}

std::optional<CodeRows> channels_of(const at::Tensor& t, const TapeNode& n, int64_t elements) {
  if (t.is_non_overlapping_and_dense() && t.numel() == elements) {
    return rows_of(t, Along::kChannels);
  }
  const Geometry& g = n.geometry;
  if (t.size(1) < 2 || g.bytes() != n.bytes || g.type != t.scalar_type()) return std::nullopt;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    const int64_t count = g.sizes[d], apart = g.strides[d];
    if (count >= t.size(1) && apart == t.stride(1)) {
      return CodeRows{.outer = elements / (count * apart), .rows = count, .inner = apart};
    }
  }
  return std::nullopt;
}

void Rebuild::choose_codec(TapeNode& n) {
  const bool rounds = n.how.content() == Content::kRounded, apart = rounds && n.channels.rows > 1;
  if (apart) n.how = n.how.by_channels();
  CodecPtr& codec = codecs_[(rounds && !apart ? "rows " : "") + n.how.text()];
  if (!codec) codec = (rounds && !apart ? n.how.by_rows() : n.how).codec();
  n.codec = codec;
  const int64_t elements = n.bytes / static_cast<int64_t>(c10::elementSize(n.coded));
  n.coded_bytes = (apart ? codec->bytes(n.channels.rows, n.channels.length(), n.coded)
                         : codec->bytes(elements / n.coded_row, n.coded_row, n.coded))
                      .value_or(n.bytes);
}

bool Rebuild::can_part(const TapeNode& n, int64_t channels, int depth) const {
  const bool recipe = n.mode == TapeNode::Mode::kRecipe;
  if (channels <= std::max<int64_t>(1, n.channels.rows)) return true;
  if (is_steady(n) || (recipe && n.count > 0 && n.roots.empty())) return true;
  if (n.codes.defined()) return n.is_there();
  if ((n.count > 0 && !recipe) || !may_run(n.record)) return true;
  return can_part_inputs(n, channels, depth);
}

bool Rebuild::can_part_inputs(const TapeNode& n, int64_t channels, int depth) const {
  return depth < kPartDepth && std::ranges::all_of(n.record->inputs, [&](const auto& input) {
           return is_steady(*input.node) ||
                  (lies_alike(input, n) && can_part(*input.node, channels, depth + 1));
         });
}

void Rebuild::part_channels(TapeNode& n, const CodeRows& channels) {
  if (channels.rows <= std::max<int64_t>(1, n.channels.rows)) return;
  if (n.codes.defined() && !n.is_there()) return;
  n.channels = channels;
  if (n.coded_bytes >= 0 && n.how.content() == Content::kRounded) {
    choose_codec(n);
    if (n.codes.defined()) hold_again(n);
  }
  if (n.mode != TapeNode::Mode::kRecipe) return;
  for (const Record::Input& input : n.record->inputs) {
    if (lies_alike(input, n)) part_channels(*input.node, channels);
  }
}

}  // namespace compact
