// SPDX-License-Identifier: Apache-2.0
// safetensors files made to harm: every one must end in an InputError, within bounded memory.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "compact/base/philox.h"
#include "compact/io/safetensors.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string with_length(const std::string& json, const std::string& data = "") {
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json + data;
}

std::vector<at::Tensor> read_all(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::vector<at::Tensor> tensors;
  for (const TensorEntry& entry : file.entries()) tensors.push_back(file.read(entry.name));
  return tensors;
}

std::string error_of_bytes(const std::string& bytes) {
  const TemporaryFolder folder;
  spill(folder / "f", bytes);
  const std::string error = error_of([&] { read_all(folder / "f"); });
  if (!error.empty()) {
    EXPECT_TRUE(error.starts_with((folder / "f").string() + ": ")) << error;
  }
  return error;
}

std::string error_of_json(const std::string& json, size_t data_bytes = 0) {
  return error_of_bytes(with_length(json, std::string(data_bytes, '\0')));
}

// One tensor with the given parts of its entry.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(HostileSafetensors, Lengths) {
  EXPECT_THAT(error_of_bytes(""), HasSubstr("at least 8 bytes, has 0"));
  EXPECT_THAT(error_of_bytes("1234567"), HasSubstr("at least 8 bytes, has 7"));
  EXPECT_THAT(error_of_bytes(std::string(8, '\0')), HasSubstr("must begin with `{`"));
  EXPECT_THAT(error_of_bytes(std::string(100, '\xff')), HasSubstr("at most 100000000"));
  for (uint64_t length : {uint64_t{3}, uint64_t{100}, uint64_t{99'999'999}}) {
    std::string bytes = with_length("{}");
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(error_of_bytes(bytes), HasSubstr("must fit into the file of 10"));
  }
  EXPECT_EQ(error_of_json("{}"), "");
  EXPECT_EQ(error_of_json("{}   "), "");
  EXPECT_THAT(error_of_json(" {}"), HasSubstr("must begin"));
  EXPECT_THAT(error_of([] { SafetensorsFile("/dev/zero"); }), HasSubstr("regular file"));
  EXPECT_THAT(error_of([] { SafetensorsFile("/nonexistent"); }), HasSubstr("No such file"));
}

TEST(HostileSafetensors, Json) {
  for (const char* json : {"{", "{}}", "{} x", "{\"a\"}", "{\"\xff\":1}", "{a:1}", "{,}"}) {
    EXPECT_THAT(error_of_json(json), HasSubstr("valid JSON")) << json;
  }
  EXPECT_THAT(error_of_json(std::string("{}\0 ", 4)), HasSubstr("NUL"));
  EXPECT_THAT(error_of_json(R"({"a":1})"), HasSubstr("tensor `a`: unexpected a number"));
  EXPECT_THAT(error_of_json(R"({"a":null})"), HasSubstr("unexpected null"));
  EXPECT_THAT(error_of_json(R"({"a":[]})"), HasSubstr("unexpected an array"));
  EXPECT_THAT(error_of_json(R"({"a":"x"})"), HasSubstr("unexpected a string"));
  EXPECT_THAT(error_of_json(R"({"a":{}})"), HasSubstr("must have dtype, shape"));
  EXPECT_THAT(error_of_json(R"({"a":{"dtype":{}}})"), HasSubstr("unexpected an object"));
  EXPECT_THAT(error_of_json(R"({"a":{"dtype":[]}})"), HasSubstr("unexpected an array"));
  EXPECT_THAT(error_of_json(R"({"a":{"shape":"x"}})"), HasSubstr("unexpected a string"));
  EXPECT_THAT(error_of_json(R"({"a":{"shape":[[1]]}})"), HasSubstr("unexpected an array"));
  EXPECT_THAT(error_of_json(R"({"a":{"shape":[{}]}})"), HasSubstr("unexpected an object"));
  EXPECT_THAT(error_of_json(R"({"a":{"extra":1}})"), HasSubstr("one is `extra`"));
  EXPECT_THAT(error_of_json(R"({"__metadata__":{"a":1}})"), HasSubstr("unexpected a number"));
  EXPECT_THAT(error_of_json(R"({"__metadata__":{"a":{}}})"), HasSubstr("unexpected an object"));
  EXPECT_THAT(error_of_json(R"({"__metadata__":[]})"), HasSubstr("unexpected an array"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_THAT(error_of_json(deep), HasSubstr("fields must be"));
  EXPECT_THAT(error_of_json("{\"a\":" + std::string(1'000'000, '[')), HasSubstr("an array"));
}

TEST(HostileSafetensors, RepeatedKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_EQ(error_of_json("{" + a + "}", 1), "");
  EXPECT_THAT(error_of_json("{" + a + "," + a + "}", 1), HasSubstr("`a` is given twice"));
  EXPECT_THAT(error_of_json(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("twice"));
  EXPECT_THAT(error_of_json(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("twice"));
  EXPECT_THAT(error_of_json(R"({"a":{"dtype":"U8","dtype":"I8"}})"), HasSubstr("twice"));
}

TEST(HostileSafetensors, TypesShapesAndOffsets) {
  EXPECT_THAT(error_of_json(entry("F8_E4M3", "[1]", "[0,1]"), 1), HasSubstr("is `F8_E4M3`"));
  EXPECT_THAT(error_of_json(entry("f32", "[1]", "[0,4]"), 4), HasSubstr("is `f32`"));
  EXPECT_THAT(error_of_json(entry("U8", "[-1]", "[0,1]"), 1), HasSubstr("a negative number"));
  EXPECT_THAT(error_of_json(entry("U8", "[1.0]", "[0,1]"), 1), HasSubstr("not an integer"));
  EXPECT_THAT(error_of_json(entry("U8", "[1e2]", "[0,1]"), 1), HasSubstr("not an integer"));
  EXPECT_THAT(error_of_json(entry("U8", "[99999999999999999999]", "[0,1]"), 1),
              HasSubstr("not an integer"));
  EXPECT_THAT(error_of_json(entry("U8", "[9223372036854775808]", "[0,1]"), 1),
              HasSubstr("below 2^63"));
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807,2]",
                            "[2305843009213693952,4]", "[0,4294967296,4294967296]"}) {
    EXPECT_THAT(error_of_json(entry("F32", shape, "[0,0]")), HasSubstr("product")) << shape;
  }
  EXPECT_EQ(error_of_json(entry("F32", "[0,4294967296]", "[0,0]")), "");
  std::string many = "[1";
  for (int i = 0; i < 63; ++i) many += ",1";
  EXPECT_EQ(error_of_json(entry("U8", many + "]", "[0,1]"), 1), "");
  EXPECT_THAT(error_of_json(entry("U8", many + ",1]", "[0,1]"), 1), HasSubstr("at most 64"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[0]"), 1), HasSubstr("2 numbers"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[0,1,1]"), 1), HasSubstr("2 numbers"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[0,2]"), 1), HasSubstr("at most 1"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[1,0]"), 1), HasSubstr("ordered"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[0,9223372036854775807]"), 1),
              HasSubstr("at most"));
  EXPECT_THAT(error_of_json(entry("F32", "[1]", "[0,1]"), 1), HasSubstr("need 4 bytes"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[1,2]"), 2), HasSubstr("gap or overlap"));
  EXPECT_THAT(error_of_json(entry("U8", "[1]", "[0,1]"), 2), HasSubstr("cover 1 of 2"));
  EXPECT_THAT(error_of_json("{}", 1), HasSubstr("cover 0 of 1"));
}

TEST(HostileSafetensors, OverlapsAndGapsBetweenTensors) {
  const auto two = [](const char* a, const char* b) {
    return cat(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)", a,
               R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)", b, "}}");
  };
  EXPECT_EQ(error_of_json(two("[0,2]", "[2,4]"), 4), "");
  EXPECT_EQ(error_of_json(two("[2,4]", "[0,2]"), 4), "");
  EXPECT_THAT(error_of_json(two("[0,2]", "[1,3]"), 3), HasSubstr("`b` begins at 1 after 2"));
  EXPECT_THAT(error_of_json(two("[0,2]", "[0,2]"), 2), HasSubstr("`b` begins at 0 after 2"));
  EXPECT_THAT(error_of_json(two("[0,2]", "[3,5]"), 5), HasSubstr("`b` begins at 3 after 2"));
}

TEST(HostileSafetensors, BooleansAreZeroOrOne) {
  const std::string json = entry("BOOL", "[3]", "[0,3]");
  EXPECT_EQ(error_of_bytes(with_length(json, std::string("\0\1\0", 3))), "");
  EXPECT_THAT(error_of_bytes(with_length(json, std::string("\0\1\2", 3))),
              HasSubstr("must be 0 or 1, one is 2"));
}

TEST(HostileSafetensors, FileThatShrinksAfterOpening) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"a", at::ones({1000})}});
  const SafetensorsFile file(folder / "f");
  std::filesystem::resize_file(folder / "f", 500);
  EXPECT_THAT(error_of([&] { file.read("a"); }),
              AllOf(HasSubstr((folder / "f").string()), HasSubstr("ends at byte")));
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// 2,000 damaged copies of a sound file: flips, cuts, and digits of the header replaced by others,
// each read whole or refused.
TEST(HostileSafetensors, DamagedCopiesNeverCrash) {
  const TemporaryFolder folder;
  write_safetensors(folder / "sound", {{"layers.0.weight", at::randn({7, 5})},
                                       {"layers.0.mask", at::zeros({9}, at::kBool)},
                                       {"layers.1.weight", at::randn({3, 2}).to(at::kBFloat16)},
                                       {"steps", at::tensor({1, 2, 3})}});
  const std::string sound = slurp(folder / "sound");
  uint64_t header = 0;
  std::memcpy(&header, sound.data(), 8);
  [[maybe_unused]] const int64_t peak_before = peak_bytes();
  int refused = 0;
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string bytes = sound;
    const Random4 r = philox(17, round);
    for (uint32_t change = 0; change <= r.v[0] % 4; ++change) {
      const Random4 c = philox(18, round, change);
      // Mostly in the header: what follows is data, where anything is allowed.
      const size_t place = c.v[1] % (c.v[0] % 8 ? 8 + header : bytes.size());
      if (bytes[place] >= '0' && bytes[place] <= '9') {
        bytes[place] = static_cast<char>('0' + c.v[2] % 10);
      } else {
        bytes[place] = static_cast<char>(bytes[place] ^ (1u << c.v[2] % 8));
      }
    }
    if (r.v[1] % 4 == 0) bytes.resize(r.v[2] % bytes.size());
    spill(folder / "damaged", bytes);
    const std::string error = error_of([&] {
      for (const at::Tensor& t : read_all(folder / "damaged")) EXPECT_LE(t.nbytes(), bytes.size());
    });
    refused += !error.empty();
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 2000);
#ifndef __SANITIZE_ADDRESS__  // keeps freed memory
  EXPECT_LT(peak_bytes() - peak_before, int64_t{32} << 20);
#endif
}

}  // namespace
}  // namespace compact
