// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "compact/base/check.h"
#include "compact/data/files/archive.h"
#include "compact/data/files/npy.h"
#include "compact/data/graphs/edge_list.h"
#include "compact/data/graphs/graph.h"

namespace compact {
namespace {

constexpr int64_t kMostMembers = 1024;
constexpr int64_t kMostArrayBytes = int64_t{1} << 29;
constexpr int64_t kMostCells = int64_t{1} << 28;
constexpr std::array<std::string_view, 9> kArrays = {"adj_data",    "adj_indices", "adj_indptr",
                                                     "adj_shape",   "attr_data",   "attr_indices",
                                                     "attr_indptr", "attr_shape",  "labels"};

class Arrays {
 public:
  explicit Arrays(const std::string& path) : path_(path) {
    ArchiveReader archive(path, kMostMembers);
    while (archive.next()) {
      const std::string& file = archive.name();
      if (!file.ends_with(".npy")) continue;
      const std::string name = file.substr(0, file.size() - 4);
      if (std::find(kArrays.begin(), kArrays.end(), name) == kArrays.end()) continue;
      arrays_[name] = parse_npy(archive.read(kMostArrayBytes), where(name));
    }
  }
  std::string where(const std::string& name) const { return path_ + ": array " + name; }

  // int64 [size], all in [low, high].
  at::Tensor integers(const std::string& name, int64_t size, int64_t low, int64_t high) const {
    const at::Tensor& t = vector(name, size);
    COMPACT_CHECK(at::isIntegralType(t.scalar_type(), false), where(name),
                  ": must be of integers, is of ", t.scalar_type());
    at::Tensor all = t.to(at::kLong).contiguous();
    const auto* const values = all.data_ptr<int64_t>();
    for (int64_t i = 0; i < all.numel(); ++i) {
      COMPACT_CHECK(values[i] >= low && values[i] <= high, where(name), ": values must be from ",
                    low, " to ", high, ", number ", i, " is ", values[i]);
    }
    return all;
  }

  // float32 [size], all finite.
  at::Tensor numbers(const std::string& name, int64_t size) const {
    const at::Tensor all = vector(name, size).to(at::kFloat).contiguous();
    const auto* const values = all.data_ptr<float>();
    for (int64_t i = 0; i < size; ++i) {
      COMPACT_CHECK(std::isfinite(values[i]), where(name), ": values must be finite, number ", i,
                    " is ", values[i]);
    }
    return all;
  }

  const at::Tensor& vector(const std::string& name) const {
    const auto found = arrays_.find(name);
    COMPACT_CHECK(found != arrays_.end(), path_, ": has no array ", name);
    COMPACT_CHECK(found->second.dim() == 1, where(name), ": must have 1 dimension, has ",
                  found->second.dim());
    return found->second;
  }

 private:
  const at::Tensor& vector(const std::string& name, int64_t size) const {
    const at::Tensor& t = vector(name);
    COMPACT_CHECK(t.numel() == size, where(name), ": must have ", size, " values, has ", t.numel());
    return t;
  }

  std::string path_;
  std::map<std::string, at::Tensor> arrays_;
};

// A sparse matrix: entries starts[r] to starts[r + 1] are row r's.
struct Csr {
  int64_t rows = 0, columns = 0;
  at::Tensor starts, indices, values;

  // f(row, column, value) of every entry.
  template <class F>
  void each(const F& f) const {
    const auto* const start = starts.data_ptr<int64_t>();
    const auto* const index = indices.data_ptr<int64_t>();
    const auto* const value = values.data_ptr<float>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = start[r]; i < start[r + 1]; ++i) f(r, index[i], value[i]);
    }
  }
};
Csr read_csr(const Arrays& arrays, const std::string& name) {
  Csr csr;
  const at::Tensor shape = arrays.integers(name + "_shape", 2, 1, EdgeList::kMostNodes);
  csr.rows = shape[0].item<int64_t>();
  csr.columns = shape[1].item<int64_t>();
  const int64_t entries = arrays.vector(name + "_indices").numel();
  csr.starts = arrays.integers(name + "_indptr", csr.rows + 1, 0, entries);
  csr.indices = arrays.integers(name + "_indices", entries, 0, csr.columns - 1);
  csr.values = arrays.numbers(name + "_data", entries);
  const auto* const start = csr.starts.data_ptr<int64_t>();
  const std::string where = arrays.where(name + "_indptr");
  COMPACT_CHECK(start[0] == 0, where, ": must begin with 0, begins with ", start[0]);
  COMPACT_CHECK(start[csr.rows] == entries, where, ": must end with the ", entries,
                " entries, ends with ", start[csr.rows]);
  for (int64_t r = 0; r < csr.rows; ++r) {
    COMPACT_CHECK(start[r] <= start[r + 1], where, ": must not descend, after ", start[r],
                  " comes ", start[r + 1]);
  }
  return csr;
}

at::Tensor dense(const Csr& csr, const std::string& where) {
  COMPACT_CHECK(csr.columns <= kMostCells / csr.rows, where, ": must have at most ", kMostCells,
                " values in all, has ", csr.rows, " x ", csr.columns);
  at::Tensor out = at::zeros({csr.rows, csr.columns}, at::kFloat);
  auto* const to = out.data_ptr<float>();
  std::vector<int64_t> last_row(csr.columns, -1);
  csr.each([&](int64_t row, int64_t column, float value) {
    COMPACT_CHECK(last_row[column] != row, where, ": row ", row, " has column ", column, " twice");
    last_row[column] = row;
    to[row * csr.columns + column] = value;
  });
  return out;
}

}  // namespace

Graph read_graph_npz(const std::string& path) {
  const Arrays arrays(path);
  const Csr adjacency = read_csr(arrays, "adj"), attributes = read_csr(arrays, "attr");
  const int64_t nodes = adjacency.rows;
  COMPACT_CHECK(adjacency.columns == nodes, arrays.where("adj_shape"), ": must be square, is ",
                nodes, " x ", adjacency.columns);
  COMPACT_CHECK(attributes.rows == nodes, arrays.where("attr_shape"),
                ": must have a row for each of ", nodes, " nodes, has ", attributes.rows);
  Graph graph;
  EdgeList edges;
  adjacency.each([&](int64_t row, int64_t column, float value) {
    if (value != 0) edges.add(row, column);
  });
  graph.edges = edges.tensor();
  graph.features = dense(attributes, arrays.where("attr_shape"));
  graph.labels = arrays.integers("labels", nodes, 0, nodes - 1);
  graph.classes = graph.labels.max().item<int64_t>() + 1;
  return graph;
}

}  // namespace compact
