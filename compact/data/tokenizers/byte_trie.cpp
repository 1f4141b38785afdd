// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/byte_trie.h"

namespace compact {

ByteTrie::ByteTrie() : edges_(1024, Edge{0, 0, 0}), values_(1, kNone) {}

size_t ByteTrie::place(uint32_t parent, uint8_t byte) const {
  const size_t mask = edges_.size() - 1;
  const uint64_t key = (uint64_t{parent} << 8 | byte) * 0x9E3779B97F4A7C15;
  size_t i = static_cast<size_t>(key >> 32) & mask;
  while (edges_[i].child != 0 && (edges_[i].parent != parent || edges_[i].byte != byte)) {
    i = (i + 1) & mask;
  }
  return i;
}

void ByteTrie::grow() {
  std::vector<Edge> old(edges_.size() * 2, Edge{0, 0, 0});
  old.swap(edges_);
  for (const Edge& edge : old) {
    if (edge.child != 0) edges_[place(edge.parent, edge.byte)] = edge;
  }
}

bool ByteTrie::add(std::string_view key, uint32_t value) {
  uint32_t at = kRoot;
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    if (const uint32_t next = step(at, byte); next != 0) {
      at = next;
      continue;
    }
    if (2 * values_.size() >= edges_.size()) grow();
    const auto child = static_cast<uint32_t>(values_.size());
    edges_[place(at, byte)] = {at, child, byte};
    values_.push_back(kNone);
    at = child;
  }
  if (values_[at] != kNone) return false;
  values_[at] = value;
  return true;
}

std::optional<ByteTrie::Match> ByteTrie::longest(std::string_view text, uint32_t from) const {
  std::optional<Match> best;
  uint32_t at = from;
  for (size_t i = 0; i < text.size(); ++i) {
    at = step(at, static_cast<uint8_t>(text[i]));
    if (at == 0) break;
    if (values_[at] != kNone) best = Match{values_[at], i + 1};
  }
  return best;
}

uint32_t ByteTrie::node(std::string_view prefix) const {
  uint32_t at = kRoot;
  for (const char c : prefix) {
    at = step(at, static_cast<uint8_t>(c));
    if (at == 0) return kNone;
  }
  return at;
}

}  // namespace compact
