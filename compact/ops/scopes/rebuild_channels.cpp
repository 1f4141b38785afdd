// SPDX-License-Identifier: Apache-2.0
// Rebuild's part that chooses which elements share scales of codes: of a row of memory, or of a
// channel.
#include <algorithm>
#include <numeric>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {

constexpr int kPartDepth = 8;  // operations between a tensor and those that can_part() looks at

namespace {

int64_t elements_of(const TapeNode& n) {
  return n.bytes / static_cast<int64_t>(c10::elementSize(n.geometry.type));
}

// Whether each element of the node lies where the element of the input lies that it is made from.
bool lies_alike(const Record::Input& input, const TapeNode& n) {
  const Geometry &a = input.geometry, &b = n.geometry;
  return elements_of(*input.node) == elements_of(n) && input.node->geometry.type == a.type &&
         at::isComplexType(a.type) == at::isComplexType(b.type) && a.sizes == b.sizes &&
         a.strides == b.strides && a.offset == b.offset;
}

// Rows of the input of which none goes to two of these rows of the node: each element by itself
// where it has a value for each row. nullopt: they are not known.
std::optional<CodeRows> rows_of_input(const Record::Input& input, const TapeNode& n,
                                      const CodeRows& rows) {
  if (lies_alike(input, n)) return rows;
  const Geometry& as = input.geometry;
  if (c10::multiply_integers(as.sizes) <= rows.count()) {
    return CodeRows{.rows = elements_of(*input.node), .inner = 1};
  }
  const int64_t row = row_of(input.node->geometry, kLeastRow);
  if (rows.outer > 1 || rows.inner % row != 0 || as.sizes.back() % row != 0 ||
      as.strides.back() != 1) {
    return std::nullopt;
  }
  return CodeRows{.rows = elements_of(*input.node) / row, .inner = row};
}

}  // namespace

CodeRows TapeNode::rows_of_codes() const {
  if (coded_row < 1 || how.content() != Content::kRounded) return {};
  if (apart.outer > 1) return apart;
  const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(coded));
  return {.rows = elements / coded_row, .inner = coded_row};
}

void Rebuild::choose_codec(TapeNode& n) {
  const bool rounds = n.how.content() == Content::kRounded, outer = rounds && n.apart.outer > 1,
             rows = rounds && !n.apart.are_channels();
  if (rounds && !rows) n.how = n.how.by_channels();
  if (rounds && !outer && n.apart.rows > 1) n.coded_row = std::gcd(n.coded_row, n.apart.inner);
  CodecPtr& codec = codecs_[(rows ? "rows " : "") + n.how.text()];
  if (!codec) codec = (rows ? n.how.by_rows() : n.how).codec();
  n.codec = codec;
  const int64_t elements = n.bytes / static_cast<int64_t>(c10::elementSize(n.coded));
  n.coded_bytes = (outer ? codec->bytes(n.apart.count(), n.apart.length(), n.coded)
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
           const std::optional<CodeRows> own = rows_of_input(input, n, rows);
           return own && can_part(*input.node, *own, depth + 1);
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
  if (n.mode == TapeNode::Mode::kRecipe) part_inputs(n);
}

void Rebuild::part_inputs(TapeNode& n) {
  if (n.apart.count() < 2) return;
  for (const Record::Input& input : n.record->inputs) {
    if (const auto rows = rows_of_input(input, n, n.apart)) part(*input.node, *rows);
  }
}

}  // namespace compact
