// SPDX-License-Identifier: Apache-2.0
// Rebuild's part that chooses which elements share scales of codes: of a row of memory, or of a
// channel.
#include <algorithm>
#include <numeric>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {

constexpr int64_t kLeastApart = 16;  // elements, in fewer of which codes save little
constexpr int kPartDepth = 8;  // operations between a tensor and those that can_part() looks at

bool lies_alike(const Record::Input& input, const TapeNode& n) {
  const Geometry &a = input.geometry, &b = n.geometry;
  return input.node->bytes == n.bytes && input.node->geometry.type == b.type && a.type == b.type &&
         a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset;
}

CodeRows TapeNode::rows_of_codes() const {
  if (coded_row < 1 || how.content() != Content::kRounded) return {};
  if (apart.outer > 1) return apart;
  const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(coded));
  return {.rows = elements / coded_row, .inner = coded_row};
}

std::optional<CodeRows> rows_in(const TapeNode& n, const at::Tensor& t, const CodeRows& rows,
                                int64_t elements) {
  if (t.is_non_overlapping_and_dense() && t.numel() == elements) return rows;
  const Geometry &g = n.geometry, as = Geometry::of(t);
  if (g.bytes() != n.bytes || g.type != as.type) return std::nullopt;
  if (rows.outer == 1) {
    int64_t inner = std::gcd(rows.inner, as.offset);
    for (size_t d = 0; d < as.sizes.size(); ++d) {
      if (as.sizes[d] > 1 && as.strides[d] >= rows.inner) inner = std::gcd(inner, as.strides[d]);
    }
    if (row_of(as, rows.inner) != rows.inner || inner < kLeastApart) return std::nullopt;
    return CodeRows{.rows = elements / inner, .inner = inner};
  }
  const bool channels = t.dim() > 1 && rows.rows == t.size(1) && rows.inner == t.stride(1);
  if (!channels) return std::nullopt;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    const int64_t count = g.sizes[d], apart = g.strides[d];
    if (count >= t.size(1) && apart == t.stride(1)) {
      return CodeRows{.outer = elements / (count * apart), .rows = count, .inner = apart};
    }
  }
  return std::nullopt;
}

void Rebuild::choose_codec(TapeNode& n) {
  const bool rounds = n.how.content() == Content::kRounded, outer = rounds && n.apart.outer > 1;
  if (outer) n.how = n.how.by_channels();
  if (rounds && !outer && n.apart.rows > 1) n.coded_row = std::gcd(n.coded_row, n.apart.inner);
  CodecPtr& codec = codecs_[(rounds && !outer ? "rows " : "") + n.how.text()];
  if (!codec) codec = (rounds && !outer ? n.how.by_rows() : n.how).codec();
  n.codec = codec;
  const int64_t elements = n.bytes / static_cast<int64_t>(c10::elementSize(n.coded));
  n.coded_bytes = (outer ? codec->bytes(n.apart.rows, n.apart.length(), n.coded)
                         : codec->bytes(elements / n.coded_row, n.coded_row, n.coded))
                      .value_or(n.bytes);
  if (n.coded_bytes >= n.bytes) n.coded_bytes = -1;  // groups of few elements: it is held whole
}

bool Rebuild::can_part(const TapeNode& n, const CodeRows& rows, int depth) const {
  const bool recipe = n.mode == TapeNode::Mode::kRecipe;
  if (n.apart.refine(rows) || (n.codes.defined() && n.rows_of_codes().refine(rows))) return true;
  if (is_steady(n) || (recipe && n.count > 0 && n.roots.empty())) return true;
  if (n.count > 0 && !rows.refine(n.apart)) return false;
  if (n.codes.defined()) return n.is_there();
  if ((n.count > 0 && !recipe) || !may_run(n.record)) return true;
  return can_part_inputs(n, rows, depth);
}

bool Rebuild::can_part_inputs(const TapeNode& n, const CodeRows& rows, int depth) const {
  return depth < kPartDepth && std::ranges::all_of(n.record->inputs, [&](const auto& input) {
           if (is_steady(*input.node)) return true;
           return lies_alike(input, n) ? can_part(*input.node, rows, depth + 1) : rows.outer == 1;
         });
}

void Rebuild::part(TapeNode& n, const CodeRows& rows) {
  if (n.apart.refine(rows) || (n.count > 0 && !rows.refine(n.apart))) return;
  if (n.codes.defined() && !n.is_there()) return;
  const CodeRows before = n.rows_of_codes();
  n.apart = rows;
  if (n.coded_bytes >= 0 && n.how.content() == Content::kRounded) {
    choose_codec(n);
    const CodeRows now = n.rows_of_codes();
    if (n.codes.defined() && !(before.refine(now) && now.refine(before))) hold_again(n);
  }
  if (n.mode != TapeNode::Mode::kRecipe) return;
  for (const Record::Input& input : n.record->inputs) {
    if (lies_alike(input, n)) part(*input.node, rows);
  }
}

}  // namespace compact
