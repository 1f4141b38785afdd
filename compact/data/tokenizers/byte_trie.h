// SPDX-License-Identifier: Apache-2.0
// Finds the longest of a set of byte strings that a text starts with. One flat hash table of edges,
// so that a vocabulary of 100,000 tokens is a few MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace compact {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0, kNone = ~0u;
  ByteTrie();

  // Adds `key`, not empty, with a value other than kNone; false where it is there already.
  bool add(std::string_view key, uint32_t value);

  struct Match {
    uint32_t value;
    size_t length;  // bytes, at least one
  };
  // The longest key that continues what leads to `from` and starts `text`.
  std::optional<Match> longest(std::string_view text, uint32_t from = kRoot) const;
  // The node that `prefix` leads to, or kNone.
  uint32_t node(std::string_view prefix) const;

 private:
  struct Edge {
    uint32_t parent, child;  // child 0: a free place
    uint8_t byte;
  };
  size_t place(uint32_t parent, uint8_t byte) const;
  uint32_t step(uint32_t parent, uint8_t byte) const { return edges_[place(parent, byte)].child; }
  void grow();

  std::vector<Edge> edges_;  // a power of two, at most half full
  std::vector<uint32_t> values_;
};

}  // namespace compact
