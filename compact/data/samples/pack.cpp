// SPDX-License-Identifier: Apache-2.0
#include "compact/data/samples/pack.h"

#include <algorithm>
#include <map>

#include "compact/base/check.h"
#include "compact/data/samples/permutation.h"

namespace compact {

std::vector<std::vector<int64_t>> packed_rows(std::span<const int64_t> lengths, int64_t capacity,
                                              uint64_t key) {
  const auto length_of = [&](int64_t number) { return lengths[static_cast<size_t>(number)]; };
  std::vector<int64_t> order;
  const Permutation drawn(std::max<uint64_t>(1, lengths.size()), key);
  for (size_t i = 0; i < lengths.size(); ++i) {
    order.push_back(static_cast<int64_t>(drawn(i)));
    COMPACT_CHECK(lengths[i] > 0 && lengths[i] <= capacity, "[pack] length ", i,
                  " must be from 1 to ", capacity, ", is ", lengths[i]);
  }
  std::ranges::stable_sort(order, std::ranges::greater{}, length_of);
  std::vector<std::vector<int64_t>> rows;
  std::map<int64_t, std::vector<size_t>> by_room;  // rows that have some
  for (const int64_t number : order) {
    const int64_t length = length_of(number);
    const auto least = by_room.lower_bound(length);
    int64_t room = capacity;
    size_t row = rows.size();
    if (least == by_room.end()) {
      rows.emplace_back();
    } else {
      room = least->first;
      row = least->second.back();
      least->second.pop_back();
      if (least->second.empty()) by_room.erase(least);
    }
    rows[row].push_back(number);
    if (room > length) by_room[room - length].push_back(row);
  }
  return rows;
}

}  // namespace compact
