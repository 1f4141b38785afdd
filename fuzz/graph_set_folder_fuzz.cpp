// SPDX-License-Identifier: Apache-2.0
// Graphs in a folder of text files, which a NUL separates here.
#include <algorithm>

#include "compact/data/graphs/graph_set.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::filesystem::path path = fuzz::folder().path() / "SET";
  std::filesystem::create_directory(path);
  for (const char* name :
       {"SET/SET_A.txt", "SET/SET_graph_indicator.txt", "SET/SET_graph_labels.txt",
        "SET/SET_node_labels.txt", "SET/SET_node_attributes.txt"}) {
    const size_t end = std::min(bytes.find('\0'), bytes.size());
    std::filesystem::remove(fuzz::folder().path() / name);
    if (end > 0) fuzz::folder().file(name, bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  fuzz::accepted([&] { read_graph_set(path.string()); });
}
