// SPDX-License-Identifier: Apache-2.0
#include "compact/data/graphs/graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "compact/base/philox.h"
#include "compact/data/files/npy.h"
#include "compact/data/graphs/graph_dataset.h"
#include "tests/data/archives.h"
#include "tests/data/files.h"

namespace compact::test {
namespace {

std::string little_endian(size_t n, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(n >> (8 * i));
  return out;
}
std::string npy_of_header(const std::string& header, const std::string& data) {
  return "\x93NUMPY" + std::string("\x01\0", 2) + little_endian(header.size(), 2) + header + data;
}
std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  return npy_of_header(
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }   \n", data);
}
template <class T>
std::string npy(const std::string& type, const std::vector<T>& values) {
  return npy(type, "(" + std::to_string(values.size()) + ",)",
             std::string(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size()));
}
std::string ints(const std::vector<int32_t>& values) { return npy("<i4", values); }
std::string floats(const std::vector<float>& values) { return npy("<f4", values); }

using Arrays = std::map<std::string, std::string>;

// Edges 0 -> 1 (and 1 -> 0), 2 -> 0, 1 -> 1, and 3 -> 2 of weight 0.
Arrays small_graph() {
  return {{"adj_data", floats({1, 1, 5, 1, 0})},
          {"adj_indices", ints({1, 0, 1, 0, 2})},
          {"adj_indptr", ints({0, 1, 3, 4, 5})},
          {"adj_shape", npy<int64_t>("<i8", {4, 4})},
          {"attr_data", npy<double>("<f8", {.5, -2, 3})},
          {"attr_indices", npy<int16_t>("<i2", {2, 0, 2})},
          {"attr_indptr", ints({0, 1, 1, 3, 3})},
          {"attr_shape", ints({4, 3})},
          {"labels", npy<int8_t>("|i1", {2, 0, 1, 0})},
          {"names", npy("<U7", "(4,)", std::string(112, 'x'))}};
}

class GraphNpz : public testing::Test {
 protected:
  static std::string zip_of(const Arrays& arrays) {
    std::vector<Member> members;
    for (const auto& [name, bytes] : arrays) members.push_back({name + ".npy", bytes});
    return archive_of(members, "zip");
  }
  Graph read_graph(const Arrays& arrays) {
    return read_graph_npz(write_file(folder_ / "graph.npz", zip_of(arrays)));
  }
  // The error for the small graph with one array replaced.
  std::string graph_error(const std::string& name, const std::string& bytes) {
    Arrays arrays = small_graph();
    arrays[name] = bytes;
    return one_line_error_of([&] { read_graph(arrays); });
  }
  TextFolder folder_;
};

TEST(NormalizeRows, DividesByAbsoluteValues) {
  const at::Tensor rows = at::tensor({1.f, -3.f, 2.f, 2.f, 0.f, 0.f, 1.f, -1.f}).view({4, 2});
  EXPECT_TRUE(at::equal(normalize_rows(rows),
                        at::tensor({.25f, -.75f, .5f, .5f, 0.f, 0.f, .5f, -.5f}).view({4, 2})));
}

TEST_F(GraphNpz, SmallGraph) {
  const Graph graph = read_graph(small_graph());
  EXPECT_TRUE(at::equal(graph.edges, at::tensor({0, 0, 1, 2, 1, 2, 0, 0}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(
      graph.features,
      at::tensor({0.f, 0.f, .5f, 0.f, 0.f, 0.f, -2.f, 0.f, 3.f, 0.f, 0.f, 0.f}).view({4, 3})));
  EXPECT_TRUE(at::equal(graph.labels, at::tensor({2, 0, 1, 0}, at::kLong)));
  EXPECT_EQ(graph.classes, 3);
}

TEST_F(GraphNpz, WithoutEdgesOrFeatures) {
  Arrays arrays = small_graph();
  for (const char* name : {"adj", "attr"}) {
    arrays[name + std::string("_data")] = floats({});
    arrays[name + std::string("_indices")] = ints({});
    arrays[name + std::string("_indptr")] = ints({0, 0, 0, 0, 0});
  }
  const Graph graph = read_graph(arrays);
  EXPECT_EQ(graph.edges.sizes(), at::IntArrayRef({2, 0}));
  EXPECT_EQ(graph.features.abs().max().item<float>(), 0);
}

TEST_F(GraphNpz, RefusesWrongArrays) {
  const float nan = std::nanf(""), infinite = INFINITY;
  const struct {
    std::string name, bytes, rule;
  } cases[] = {
      {"adj_data", floats({1, 1, 1, nan, 1}), "number 3 is nan"},
      {"adj_data", floats({1, 1, 1, 1}), "must have 5 values, has 4"},
      {"attr_data", floats({1, infinite, 1}), "must be finite, number 1 is inf"},
      {"attr_data", npy<double>("<f8", {1, 1e300, 1}), "must be finite, number 1 is inf"},
      {"adj_indices", ints({1, 0, 1, 0, 4}), "must be from 0 to 3, number 4 is 4"},
      {"adj_indices", ints({-1, 0, 1, 0, 2}), "number 0 is -1"},
      {"adj_indices", floats({1, 0, 1, 0, 2}), "must be of integers, is of Float"},
      {"adj_indices", npy("<i4", "(1, 5)", std::string(20, '\0')), "1 dimension, has 2"},
      {"adj_indices", npy("<i4", "()", std::string(4, '\0')), "1 dimension, has 0"},
      {"adj_indptr", ints({0, 3, 1, 4, 5}), "must not descend, after 3 comes 1"},
      {"adj_indptr", ints({1, 1, 3, 4, 5}), "must begin with 0, begins with 1"},
      {"adj_indptr", ints({0, 1, 3, 4, 4}), "must end with the 5 entries, ends with 4"},
      {"adj_indptr", ints({0, 1, 6, 4, 5}), "must be from 0 to 5, number 2 is 6"},
      {"adj_indptr", ints({0, 1, -3, 4, 5}), "number 2 is -3"},
      {"adj_indptr", ints({0, 1, 3, 5}), "must have 5 values, has 4"},
      {"adj_shape", ints({4, 5}), "must be square, is 4 x 5"},
      {"adj_shape", ints({4}), "must have 2 values, has 1"},
      {"adj_shape", ints({0, 0}), "must be from 1 to"},
      {"adj_shape", npy<int64_t>("<i8", {int64_t{1} << 62, 4}), "must be from 1 to"},
      {"adj_shape", npy<int64_t>("<i8", {-4, 4}), "number 0 is -4"},
      {"adj_shape", ints({100000, 4}), "must have 100001 values"},
      {"attr_shape", ints({4, 1 << 27}), "at most 268435456 values in all, has 4 x 134217728"},
      {"attr_shape", ints({4, 2}), "must be from 0 to 1, number 0 is 2"},
      {"attr_shape", ints({3, 3}), "must have 4 values, has 5"},
      {"attr_indices", ints({2, 2, 2}), "row 2 has column 2 twice"},
      {"labels", npy<int8_t>("|i1", {2, 0, -1, 0}), "number 2 is -1"},
      {"labels", npy<int64_t>("<i8", {2, 0, 1, int64_t{1} << 60}), "must be from 0 to 3"},
      {"labels", npy<int8_t>("|i1", {2, 0, 1}), "must have 4 values, has 3"},
      {"labels", floats({2, 0, 1, 0}), "must be of integers"},
      {"labels", "", "begins with"},
      {"labels", "text", "begins with"},
  };
  for (const auto& c : cases) {
    const std::string text = graph_error(c.name, c.bytes);
    EXPECT_THAT(text, HasSubstr(c.rule)) << c.name;
    EXPECT_THAT(text, HasSubstr("graph.npz: array " + c.name.substr(0, 4))) << c.name;
  }
}

TEST_F(GraphNpz, RefusesMissingArraysAndNoZip) {
  for (const auto& [name, bytes] : small_graph()) {
    if (name == "names") continue;
    Arrays arrays = small_graph();
    arrays.erase(name);
    EXPECT_THAT(one_line_error_of([&] { read_graph(arrays); }), HasSubstr("has no array " + name));
  }
  EXPECT_THAT(one_line_error_of([&] { read_graph_npz(write_file(folder_ / "a.npz", "text")); }),
              HasSubstr("no whole archive"));
}

TEST_F(GraphNpz, CutAnywhere) {
  const std::string whole = zip_of(small_graph());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = write_file(folder_ / "cut.npz", whole.substr(0, size));
    ASSERT_NE(one_line_error_of([&] { read_graph_npz(path); }), "") << size;
  }
}

TEST_F(GraphNpz, DamagedAnywhereIsAnErrorOrAGraph) {
  const std::string whole = zip_of(small_graph());
  int64_t refused = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    std::string damaged = whole;
    const Random4 r = philox(11, i);
    damaged[r.v[0] % damaged.size()] ^= static_cast<char>(1 + r.v[1] % 255);
    const std::string path = write_file(folder_ / "damaged.npz", damaged);
    refused += error_of([&] { read_graph_npz(path); }) != "";
  }
  EXPECT_GT(refused, 1500);
}

TEST(Npy, TypesAndShapes) {
  const at::Tensor bytes = parse_npy(npy<uint8_t>("|u1", {1, 255}), "a");
  EXPECT_TRUE(at::equal(bytes, at::tensor({1, 255}, at::kByte)));
  const at::Tensor matrix = parse_npy(npy("<i2", "(2, 3)", std::string(12, '\1')), "a");
  EXPECT_EQ(matrix.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(matrix[1][2].item<int>(), 257);
  EXPECT_EQ(parse_npy(npy("<f8", "()", std::string(8, '\0')), "a").dim(), 0);
  EXPECT_EQ(parse_npy(npy("<f8", "(0, 5)", ""), "a").numel(), 0);
  const std::string header = "{'shape':(1,),'descr':'|i1','fortran_order':False}\n";
  const std::string second =
      "\x93NUMPY" + std::string("\x02\0", 2) + little_endian(header.size(), 4) + header + "\x05";
  EXPECT_EQ(parse_npy(second, "a").item<int>(), 5);
}

TEST(Npy, RefusesWhatItDoesNotKnow) {
  const std::string order = "'fortran_order': False", type = "'descr': '<f4'";
  const struct {
    std::string bytes, rule;
  } cases[] = {
      {"", "begins with"},
      {"\x93NUMPY\x01", "begins with"},
      {std::string(128, 'x'), "begins with"},
      {"\x93NUMPY" + std::string("\x04\0", 2) + std::string(90, ' '), "this is 4.0"},
      {"\x93NUMPY" + std::string("\x01\x01", 2) + std::string(90, ' '), "this is 1.1"},
      {"\x93NUMPY" + std::string("\x01\0\xff\x0f", 4) + std::string(90, ' '), "has 4095 bytes"},
      {"\x93NUMPY" + std::string("\x02\0\xff\xff\xff\xff", 6) + std::string(90, ' '),
       "at most 4096 bytes, has 4294967295"},
      {npy(">i4", "(1,)", "abcd"), "this is `>i4`"},
      {npy("|O", "(1,)", "abcd"), "this is `|O`"},
      {npy("<u8", "(1,)", "abcdefgh"), "this is `<u8`"},
      {npy("<f2", "(1,)", "ab"), "types are"},
      {npy("|b1", "(1,)", "a"), "types are"},
      {npy("\n\x1b", "(1,)", "a"), "this is `\?\?`"},
      {npy("<i4", "(1,)", "abc"), "has 4 bytes, there are 3"},
      {npy("<i4", "(1,)", "abcde"), "has 4 bytes, there are 5"},
      {npy("<i4", "(9223372036854775807, 9223372036854775807)", ""), "too many values"},
      {npy("<i4", "(4611686018427387905, 4)", "abcd"), "too many values"},
      {npy("<i4", "(0, 922337203680, 4294967296)", ""), "too many values"},
      {npy("<i4", "(1099511627776,)", ""), "has 4398046511104 bytes, there are 0"},
      {npy("<i4", "(99999999999999999999,)", ""), "is wrong at"},
      {npy("<i4", "(-1,)", ""), "is wrong at"},
      {npy("<i4", "(1, 1, 1, 1, 1)", "abcd"), "is wrong at"},
      {npy("<i4", "(1", "abcd"), "is wrong at"},
      {npy("<i4", "1", "abcd"), "is wrong at"},
      {npy("<i4", "(1,) + (1,)", "abcd"), "is wrong at"},
      {npy_of_header("{" + type + ", 'fortran_order': True, 'shape': (1,)}\n", "abcd"), "C order"},
      {npy_of_header("{" + type + ", 'fortran_order': 1, 'shape': (1,)}\n", "abcd"), "is wrong at"},
      {npy_of_header("{" + type + ", " + order + "}\n", "abcd"), "is wrong at"},
      {npy_of_header("{" + type + ", " + type + ", " + order + ", 'shape': (1,)}\n", "abcd"),
       "is wrong at"},
      {npy_of_header("{" + type + ", 'x': 1, " + order + ", 'shape': (1,)}\n", "abcd"),
       "is wrong at"},
      {npy_of_header("{" + type + ", " + order + ", 'shape': (1,)}", "abcd"), "is wrong at"},
      {npy_of_header("{'descr': '<f4", "abcd"), "npy header"},
      {npy_of_header("", "abcdefgh"), "is wrong at"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(one_line_error_of([&] { parse_npy(c.bytes, "graph.npz: array a"); }),
                HasSubstr(c.rule))
        << testing::PrintToString(c.bytes);
  }
}

TEST_F(GraphNpz, Cora) {
  const std::string path = shared_data("graph/cora.npz");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << " (COMPACT_DATA)";
  const Graph graph = read_graph_npz(path);
  EXPECT_EQ(graph.features.sizes(), at::IntArrayRef({2708, 1433}));
  EXPECT_EQ(graph.features.sum().item<double>(), 49216);
  EXPECT_EQ(graph.edges.sizes(), at::IntArrayRef({2, 10556}));
  EXPECT_EQ(graph.classes, 7);
  EXPECT_TRUE(at::equal(at::bincount(graph.labels),
                        at::tensor({298, 418, 818, 426, 217, 180, 351}, at::kLong)));
  const NodeSplit split = planetoid_split(graph, 1);
  EXPECT_EQ(split.train.numel(), 140);
  EXPECT_EQ(split.validation.numel(), 500);
  EXPECT_EQ(split.test.numel(), 1000);
  // Papers cite papers of their own field: 81 % of Cora's edges join nodes of one class.
  const at::Tensor ends = graph.labels.index_select(0, graph.edges.view({-1})).view({2, -1});
  EXPECT_NEAR(ends[0].eq(ends[1]).to(at::kFloat).mean().item<double>(), .81, .005);
}

Graph labelled(const std::vector<int64_t>& labels, int64_t classes) {
  Graph graph;
  graph.labels = at::tensor(labels, at::kLong);
  graph.classes = classes;
  return graph;
}

TEST(PlanetoidSplit, PartsAreDisjointAndFull) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 300; ++i) labels.push_back(i % 7 == 0 ? 2 : i % 2);
  const Graph graph = labelled(labels, 3);
  const NodeSplit split = planetoid_split(graph, 5, 20, 100, 140);
  EXPECT_TRUE(at::equal(at::bincount(graph.labels.index_select(0, split.train)),
                        at::full({3}, 20, at::kLong)));
  const at::Tensor all = at::cat({split.train, split.validation, split.test});
  EXPECT_TRUE(at::equal(std::get<0>(all.sort()), at::arange(300, at::kLong)));
  for (const at::Tensor& part : {split.train, split.validation, split.test}) {
    EXPECT_TRUE(at::equal(std::get<0>(part.sort()), part));
  }
}

TEST(PlanetoidSplit, FollowsTheSeed) {
  std::vector<int64_t> labels(200, 0);
  const Graph graph = labelled(labels, 1);
  const NodeSplit one = planetoid_split(graph, 1, 50, 50, 50);
  const NodeSplit again = planetoid_split(graph, 1, 50, 50, 50);
  const NodeSplit other = planetoid_split(graph, 2, 50, 50, 50);
  EXPECT_TRUE(at::equal(one.train, again.train) && at::equal(one.test, again.test));
  EXPECT_FALSE(at::equal(one.train, other.train));
}

// Each node is as likely as another to be trained on.
TEST(PlanetoidSplit, IsUniform) {
  const Graph graph = labelled(std::vector<int64_t>(20, 0), 1);
  at::Tensor times = at::zeros({20}, at::kLong);
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    times += at::bincount(planetoid_split(graph, seed, 5, 5, 5).train, {}, 20);
  }
  // 1,000 each with a standard deviation of 27.
  EXPECT_GT(times.min().item<int64_t>(), 1000 - 5 * 27);
  EXPECT_LT(times.max().item<int64_t>(), 1000 + 5 * 27);
}

TEST(PlanetoidSplit, RefusesWhatIsTooSmall) {
  const Graph graph = labelled({0, 0, 0, 0, 1, 1, 1}, 2);
  const auto error = [](const Graph& g, int64_t per_class, int64_t validation, int64_t test) {
    return one_line_error_of([&] { planetoid_split(g, 1, per_class, validation, test); });
  };
  EXPECT_THAT(error(graph, 4, 1, 1), HasSubstr("at least 4 nodes, class 1 has 3"));
  EXPECT_THAT(error(labelled({0, 2, 2}, 3), 1, 1, 1), HasSubstr("class 1 has 0"));
  EXPECT_THAT(error(graph, 2, 2, 2), HasSubstr("beside those to train there are 3"));
  EXPECT_THAT(error(graph, 2, int64_t{1} << 62, int64_t{1} << 62), HasSubstr("there are 3"));
  EXPECT_THAT(error(graph, 0, 1, 1), HasSubstr("at least 1 node, one has 0"));
  EXPECT_THAT(error(graph, 1, 1, -1), HasSubstr("one has -1"));
  EXPECT_THAT(error(labelled({0, 5, 0}, 2), 1, 1, 1), HasSubstr("that of node 1 is 5"));
  EXPECT_THAT(error(labelled({0, -1, 0}, 2), 1, 1, 1), HasSubstr("that of node 1 is -1"));
  EXPECT_THAT(error(Graph{}, 1, 1, 1), HasSubstr("must be int64 [nodes]"));
  EXPECT_EQ(planetoid_split(graph, 1, 2, 2, 1).test.numel(), 1);
}

}  // namespace
}  // namespace compact::test
