// SPDX-License-Identifier: Apache-2.0
// A graph in numpy's archive.
#include "compact/data/graphs/graph.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("graph.npz", bytes);
  fuzz::accepted([&] { read_graph_npz(path); });
}
