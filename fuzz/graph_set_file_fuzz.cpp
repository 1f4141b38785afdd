// SPDX-License-Identifier: Apache-2.0
// Graphs in one text file.
#include "compact/data/graphs/graph_set.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("graphs.txt", bytes);
  fuzz::accepted([&] { read_graph_set(path); });
}
