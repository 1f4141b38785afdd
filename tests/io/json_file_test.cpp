// SPDX-License-Identifier: Apache-2.0
#include "compact/io/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string parse_error(std::string_view text, JsonLimits limits = {}) {
  return error_of([&] { parse_json(text, "here", limits); });
}

TEST(Json, RefusesWhatIsNotOneValue) {
  for (std::string_view text :
       {"", " ", "{", "{]", "nul", "1 2", "{\"a\":1,}", "NaN", "1e999", "\"\xff\"", "'a'"}) {
    EXPECT_THAT(parse_error(text), HasSubstr("here: must be valid JSON")) << text;
  }
  EXPECT_THAT(parse_error(std::string_view("{}\0x", 4)), HasSubstr("NUL"));
}

TEST(Json, RefusesRepeatedKeysInOneObjectOnly) {
  EXPECT_THAT(parse_error(R"({"a":{"b":1},"c":[{"b":1},{"b":2}],"a":2})"),
              HasSubstr("`a` is given twice"));
  EXPECT_THAT(parse_error(R"({"a":{"b":1,"\u0062":2}})"), HasSubstr("`b` is given twice"));
  EXPECT_EQ(parse_error(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})"), "");
}

TEST(Json, LimitsDepthAndSize) {
  EXPECT_EQ(parse_error(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_THAT(parse_error(std::string(65, '[') + std::string(65, ']')), HasSubstr("64 levels"));
  EXPECT_THAT(parse_error(std::string(1'000'000, '[')), HasSubstr("64 levels"));
  EXPECT_EQ(parse_error("[1, 2]", {.max_bytes = 6}), "");
  EXPECT_THAT(parse_error("[1, 2]", {.max_bytes = 5}), HasSubstr("at most 5 bytes, has 6"));
}

TEST(Json, FilesRoundTripBitForBit) {
  const TemporaryFolder folder;
  const json value = {{"pi", 3.141592653589793},
                      {"tiny", 5e-324},
                      {"negative zero", -0.0},
                      {"third", 1.0 / 3},
                      {"seed", std::numeric_limits<uint64_t>::max()},
                      {"least", std::numeric_limits<int64_t>::min()},
                      {"whole", 2.0},
                      {"text", "é\n\""},
                      {"none", nullptr},
                      {"list", {1, {2, json::object()}}}};
  write_json(folder / "f.json", value);
  const json back = read_json(folder / "f.json");
  EXPECT_EQ(back, value);
  EXPECT_EQ(back.dump(), value.dump());
  EXPECT_TRUE(std::signbit(back["negative zero"].get<double>()));
}

TEST(Json, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  const auto read_error = [&](const std::string& name) {
    return error_of([&] { read_json(folder / name); });
  };
  EXPECT_THAT(read_error("no.json"),
              AllOf(HasSubstr((folder / "no.json").string()), HasSubstr("No such file")));
  spill(folder / "bad.json", "{\n\"a\": x}");
  EXPECT_THAT(read_error("bad.json"), AllOf(HasSubstr("bad.json"), HasSubstr("line 2")));
  EXPECT_EQ(read_error("bad.json").find('\n'), std::string::npos);
  std::filesystem::create_directory(folder / "d");
  EXPECT_THAT(read_error("d"), HasSubstr("regular file"));
  EXPECT_THAT(error_of([&] { read_json("/dev/zero"); }), HasSubstr("regular file"));
}

TEST(Json, WritesOnlyWhatItCanRead) {
  const TemporaryFolder folder;
  const auto write_error = [&](const json& value) {
    return error_of([&] { write_json(folder / "f.json", value); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(write_error({{"a", {1.0, nan}}}), HasSubstr("must be finite"));
  EXPECT_THAT(write_error(std::numeric_limits<double>::infinity()), HasSubstr("must be finite"));
  EXPECT_THAT(write_error("\xff"), HasSubstr("cannot be written"));
  json deep = 1;
  for (int i = 0; i < 65; ++i) deep = json::array({deep});
  EXPECT_THAT(write_error(deep), HasSubstr("levels"));
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace compact
