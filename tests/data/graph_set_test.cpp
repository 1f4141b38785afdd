// SPDX-License-Identifier: Apache-2.0
#include "compact/data/graphs/graph_set.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "compact/base/philox.h"
#include "tests/data/files.h"

namespace compact::test {
namespace {

at::Tensor edges(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong).view({2, -1});
}

class GraphSetFile : public testing::Test {
 protected:
  GraphSet read_set(const std::string& text) {
    return read_graph_set(write_file(folder_ / "set.txt", text));
  }
  std::string set_error(const std::string& text) {
    return one_line_error_of([&] { read_set(text); });
  }
  TextFolder folder_;
};

TEST_F(GraphSetFile, TagsBecomeColumns) {
  const GraphSet set = read_set("2\n3 7\n5 2 1 2\n-4 1 0\n5 1 0\n1 -1\r\n9 0\r\n\n");
  EXPECT_EQ(set.features, 3);
  EXPECT_EQ(set.classes, 2);
  ASSERT_EQ(set.graphs.size(), 2u);
  EXPECT_EQ(set.graphs[0].label, 1);
  EXPECT_EQ(set.graphs[1].label, 0);
  EXPECT_TRUE(at::equal(set.graphs[0].edges, edges({0, 0, 1, 2, 1, 2, 0, 0})));
  EXPECT_EQ(set.graphs[1].edges.sizes(), at::IntArrayRef({2, 0}));
  EXPECT_EQ(set.graphs[1].edges.scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(set.graphs[0].features,
                        at::tensor({0.f, 1.f, 0.f, 1.f, 0.f, 0.f, 0.f, 1.f, 0.f}).view({3, 3})));
  EXPECT_TRUE(at::equal(set.graphs[1].features, at::tensor({0.f, 0.f, 1.f}).view({1, 3})));
}

TEST_F(GraphSetFile, ClassesAndTagsOfAnother) {
  const GraphSet all = read_set("3\n1 5\n10 0\n1 6\n11 0\n1 7\n12 0\n");
  EXPECT_THAT(all.values.labels, testing::ElementsAre(5, 6, 7));
  EXPECT_THAT(all.values.tags, testing::ElementsAre(10, 11, 12));
  const auto read = [&](const std::string& text) {
    return read_graph_set(write_file(folder_ / "other.txt", text), &all.values);
  };
  const GraphSet some = read("1\n1 7\n12 0\n");
  EXPECT_EQ(some.classes, 3);
  EXPECT_EQ(some.graphs[0].label, 2);
  EXPECT_TRUE(at::equal(some.graphs[0].features, at::tensor({0.f, 0.f, 1.f}).view({1, 3})));
  EXPECT_THAT(one_line_error_of([&] { read("1\n1 8\n12 0\n"); }),
              testing::HasSubstr("other.txt: has a graph of class 8, which"));
  EXPECT_THAT(one_line_error_of([&] { read("1\n1 7\n13 0\n"); }),
              testing::HasSubstr("other.txt: has a node of tag 13, which"));
}

TEST_F(GraphSetFile, AttributesFollowTags) {
  const GraphSet set = read_set("1\n2 0\n0 1 1 0.5 -2e1\n1 1 0 0 3\n");
  EXPECT_TRUE(at::equal(set.graphs[0].features,
                        at::tensor({1.f, 0.f, .5f, -20.f, 0.f, 1.f, 0.f, 3.f}).view({2, 4})));
}

TEST_F(GraphSetFile, EdgesAreBothWaysOnce) {
  const GraphSet set = read_set("1\n3 0\n0 4 0 1 1 2\n0 0\n0 1 0\n");
  EXPECT_TRUE(at::equal(set.graphs[0].edges, edges({0, 0, 1, 2, 1, 2, 0, 0})));
}

TEST_F(GraphSetFile, RefusesWhatIsWrong) {
  std::string tags = "1\n20000 0\n";
  for (int i = 0; i < 20000; ++i) tags += std::to_string(i) + " 0\n";
  const struct {
    std::string text, rule;
  } cases[] = {
      {" \n\n", "has no lines"},
      {"x\n", "line 1: the number of graphs must be an integer, is `x`"},
      {"0\n", "must be from 1 to 1048576, is 0"},
      {"-3\n", "is -3"},
      {"99999999999\n1 0\n0 0\n", "must be from 1 to 1048576"},
      {"99999999999999999999\n", "must be an integer, is `99999999999999999999`"},
      {"1 2\n1 0\n0 0\n", "line 1: must end before `2`"},
      {"2\n1 0\n0 0\n", "must have 2 graphs, ends after 1"},
      {"1\n1 0\n0 0\n0 0\n", "goes on after them"},
      {"1\n2 0\n0 0\n", "graph 0 must have 2 nodes, ends after 1"},
      {"1\n100000000 0\n0 0\n", "ends after 1"},
      {"1\n0 0\n", "the number of nodes must be from 1"},
      {"1\n4611686018427387904 0\n0 0\n", "the number of nodes must be from 1"},
      {"1\n1\n0 0\n", "line 2: ends before the graph's label"},
      {"1\n1 0 3\n0 0\n", "line 2: must end before `3`"},
      {"1\n1 0.5\n0 0\n", "label must be an integer, is `0.5`"},
      {"1\n1 0\n\n0 0\n", "line 3: ends before the tag"},
      {"1\n1 0\n0\n", "ends before the number of neighbours"},
      {"1\n1 0\n0 -1\n", "number of neighbours must be from 0"},
      {"1\n1 0\n0 99999999999\n", "number of neighbours must be from 0"},
      {"1\n2 0\n0 2 1\n0 0\n", "line 3: ends before a neighbour"},
      {"1\n2 0\n0 1 2\n0 0\n", "a neighbour must be from 0 to 1, is 2"},
      {"1\n2 0\n0 1 -1\n0 0\n", "a neighbour must be from 0 to 1, is -1"},
      {"1\n1 0\n0 0 nan\n", "finite number, is `nan`"},
      {"1\n1 0\n0 0 inf\n", "finite number, is `inf`"},
      {"1\n1 0\n0 0 1e39\n", "finite number, is `1e39`"},
      {"1\n2 0\n0 0 1\n0 0\n", "must have 1 attributes as the first has, this has 0"},
      {"1\n2 0\n0 0\n0 0 1\n", "must have 0 attributes as the first has, this has 1"},
      {"1\n1 0\n\x1b[31m 0\n", "is `\?[31m`"},
      {std::string("1\n1 0\n\0 0\n", 10), "is `\?`"},
      {"1\n1 0\n" + std::string(100000, '9') + " 0\n", "999..."},
      {tags, "at most 268435456 values of features, 20000 nodes have 20000 each"},
  };
  for (const auto& c : cases) {
    const std::string text = set_error(c.text);
    EXPECT_THAT(text, HasSubstr(c.rule)) << c.text.substr(0, 60);
    EXPECT_THAT(text, HasSubstr("set.txt"));
    EXPECT_LT(text.size(), 400u);
  }
  EXPECT_THAT(set_error(""), HasSubstr("is empty"));
  EXPECT_THAT(one_line_error_of([&] { read_graph_set(folder_ / "none"); }),
              HasSubstr("none: cannot be read"));
}

// A cut that leaves whole lines and fields can only be seen by their number.
TEST_F(GraphSetFile, CutAnywhere) {
  const std::string whole = "2\n2 1\n0 1 1\n0 1 0\n2 0\n1 1 1\n0 1 0";
  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_NE(set_error(whole.substr(0, size)), "") << size;
  }
  EXPECT_EQ(read_set(whole).graphs.size(), 2u);
}

TEST_F(GraphSetFile, DamagedAnywhereIsAnErrorOrASet) {
  const std::string whole = "2\n2 1\n0 1 1 .5\n0 1 0 2\n3 0\n1 1 1 -1\n0 1 0 1e3\n4 2 0 1 7\n";
  int64_t refused = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    std::string damaged = whole;
    const Random4 r = philox(13, i);
    damaged[r.v[0] % damaged.size()] =
        static_cast<char>(r.v[2] % 2 ? r.v[1] : "0 \n9-.,e"[r.v[1] % 8]);
    refused += error_of([&] { read_set(damaged); }) != "";
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(GraphSetFile, MutagAndProteins) {
  const std::string mutag = shared_data("graph/MUTAG.txt");
  const std::string proteins = shared_data("graph/PROTEINS.txt");
  if (!std::filesystem::exists(mutag) || !std::filesystem::exists(proteins)) {
    GTEST_SKIP() << "no " << mutag << " or " << proteins << " (COMPACT_DATA)";
  }
  const struct {
    std::string path;
    size_t graphs;
    int64_t features, nodes, edges, ones;
  } sets[] = {{mutag, 188, 7, 3371, 7442, 125}, {proteins, 1113, 3, 43471, 162088, 450}};
  for (const auto& expected : sets) {
    const GraphSet set = read_graph_set(expected.path);
    EXPECT_EQ(set.graphs.size(), expected.graphs);
    EXPECT_EQ(set.features, expected.features);
    EXPECT_EQ(set.classes, 2);
    int64_t nodes = 0, edge_count = 0, ones = 0;
    for (const LabelledGraph& graph : set.graphs) {
      nodes += graph.features.size(0);
      edge_count += graph.edges.size(1);
      ones += graph.label;
      EXPECT_TRUE(at::equal(graph.features.sum(1), at::ones({graph.features.size(0)})));
    }
    EXPECT_EQ(nodes, expected.nodes);
    EXPECT_EQ(edge_count, expected.edges);
    EXPECT_EQ(ones, expected.ones);
  }
}

using Files = std::map<std::string, std::string>;

class GraphSetFolder : public testing::Test {
 protected:
  static Files small_graph_set() {
    return {{"A", "1, 2\n2, 1\n3, 5\n5,3\n"},
            {"graph_indicator", "1\n1\n2\n1\n2\n"},
            {"graph_labels", "1\n-1\n"},
            {"node_labels", "3\n0\n3\n8\n0\n"},
            {"node_attributes", "1.5, 2\n0, 0\n3, 4\n5, 6\n7, 8\n"}};
  }
  GraphSet read_set(const Files& files) {
    std::filesystem::remove_all(folder_ / "DS");
    std::filesystem::create_directory(folder_ / "DS");
    for (const auto& [name, text] : files) write_file(folder_ / ("DS/DS_" + name + ".txt"), text);
    return read_graph_set(folder_ / "DS");
  }
  std::string set_error(const std::string& name, const std::string& text) {
    Files files = small_graph_set();
    files[name] = text;
    return one_line_error_of([&] { read_set(files); });
  }
  TextFolder folder_;
};

TEST_F(GraphSetFolder, AllFiles) {
  const GraphSet set = read_set(small_graph_set());
  EXPECT_EQ(set.features, 5);
  EXPECT_EQ(set.classes, 2);
  ASSERT_EQ(set.graphs.size(), 2u);
  EXPECT_EQ(set.graphs[0].label, 1);
  EXPECT_EQ(set.graphs[1].label, 0);
  EXPECT_TRUE(at::equal(set.graphs[0].edges, edges({0, 1, 1, 0})));
  EXPECT_TRUE(at::equal(set.graphs[1].edges, edges({0, 1, 1, 0})));
  EXPECT_TRUE(at::equal(set.graphs[0].features, at::tensor({0.f, 1.f, 0.f, 1.5f, 2.f, 1.f, 0.f, 0.f,
                                                            0.f, 0.f, 0.f, 0.f, 1.f, 5.f, 6.f})
                                                    .view({3, 5})));
  EXPECT_TRUE(
      at::equal(set.graphs[1].features,
                at::tensor({0.f, 1.f, 0.f, 3.f, 4.f, 1.f, 0.f, 0.f, 7.f, 8.f}).view({2, 5})));
}

TEST_F(GraphSetFolder, WithoutLabelsOrAttributesOfNodes) {
  Files files = small_graph_set();
  files.erase("node_labels");
  EXPECT_TRUE(
      at::equal(read_set(files).graphs[1].features, at::tensor({3.f, 4.f, 7.f, 8.f}).view({2, 2})));
  files.erase("node_attributes");
  EXPECT_TRUE(at::equal(read_set(files).graphs[1].features, at::ones({2, 1})));
  files = small_graph_set();
  files.erase("node_attributes");
  EXPECT_EQ(read_set(files).features, 3);
}

TEST_F(GraphSetFolder, RefusesWhatIsWrong) {
  const struct {
    std::string name, text, rule;
  } cases[] = {
      {"A", "", "is empty"},
      {"A", "1, 2\n1, 3\n", "line 2: an edge must stay in a graph, this joins 1 and 2"},
      {"A", "0, 1\n", "a node must be from 1 to 5, is 0"},
      {"A", "1, 6\n", "a node must be from 1 to 5, is 6"},
      {"A", "1\n", "ends before a node"},
      {"A", "1, 2, 4\n", "must end before `4`"},
      {"A", "1, two\n", "must be an integer, is `two`"},
      {"A", "1, 18446744073709551617\n", "must be an integer"},
      {"graph_indicator", "1\n1\n3\n1\n2\n", "the graph must be from 1 to 2, is 3"},
      {"graph_indicator", "1\n1\n0\n1\n2\n", "is 0"},
      {"graph_indicator", "1\n1\n1\n1\n1\n", "graph 2 of 2 has none"},
      {"graph_indicator", "1\n1\n2\n1\n", "a node must be from 1 to 4, is 5"},
      {"graph_indicator", "1\n1\n2\n1\n2\n2\n", "a line for each of 6 nodes, ends after 5"},
      {"graph_labels", "1\n", "must be from 1 to 1, is 2"},
      {"graph_labels", "1\n0.5\n", "must be an integer, is `0.5`"},
      {"graph_labels", "1\n\n2\n", "line 2: ends before the graph's label"},
      {"node_labels", "3\n0\n3\n8\n", "ends after 4"},
      {"node_labels", "3\n0\n3\n8\n0\n1\n", "has more"},
      {"node_labels", "3, 1\n0\n3\n8\n0\n", "must end before `1`"},
      {"node_attributes", "1, 2\n0\n3, 4\n5, 6\n7, 8\n", "must have 2 attributes as the first"},
      {"node_attributes", "1, nan\n0, 1\n3, 4\n5, 6\n7, 8\n", "finite number, is `nan`"},
      {"node_attributes", "1, 2\n", "ends after 1"},
  };
  for (const auto& c : cases) {
    const std::string text = set_error(c.name, c.text);
    EXPECT_THAT(text, HasSubstr(c.rule)) << c.name << " " << c.text;
    EXPECT_THAT(text, HasSubstr("DS"));
  }
  for (const char* name : {"A", "graph_indicator", "graph_labels"}) {
    Files files = small_graph_set();
    files.erase(name);
    EXPECT_THAT(one_line_error_of([&] { read_set(files); }), HasSubstr("DS")) << name;
  }
  EXPECT_THAT(one_line_error_of([&] {
                Files files = small_graph_set();
                files["X_A"] = "1, 2\n";
                read_set(files);
              }),
              HasSubstr("one file NAME_A.txt, has more"));
}

}  // namespace
}  // namespace compact::test
