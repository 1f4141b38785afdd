// SPDX-License-Identifier: Apache-2.0
#include "compact/io/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr at::ScalarType kAllTypes[] = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble,
                                        at::kLong,  at::kInt,  at::kByte,     at::kBool,
                                        at::kChar,  at::kShort};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// One tensor of every type and shape, small types first so that a plain layout would misalign.
NamedTensors samples() {
  NamedTensors tensors;
  for (auto type = std::rbegin(kAllTypes); type != std::rend(kAllTypes); ++type) {
    int number = 0;
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {0}, {1}, {3, 5}, {2, 0, 4}, {1, 7, 1, 1, 3}}) {
      const at::Tensor value = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
      const at::Tensor typed =
          *type == at::kBool ? value.remainder(2).to(at::kBool) : value.sub(7).to(*type);
      tensors.emplace_back(cat(c10::toString(*type), ".", number++), typed);
    }
  }
  return tensors;
}

// Into other types and strides part by part: nothing is there twice.
TEST(Safetensors, ReadsIntoItsPlaceInParts) {
  const TemporaryFolder folder;
  const at::Tensor values = at::arange(700 * 1000, at::kFloat).reshape({700, 1000}).div(3);
  write_safetensors(folder / "f", {{"x", values}, {"one", at::scalar_tensor(7.0)}});
  const SafetensorsFile file(folder / "f");
  at::Tensor half = at::empty({700, 1000}, at::kBFloat16);
  at::Tensor turned = at::empty({1000, 700}, at::kFloat).t();
  at::Tensor one = at::empty({}, at::kDouble);
  file.read_into("x", half, Cast::kAllow);
  file.read_into("x", turned);
  file.read_into("one", one, Cast::kAllow);
  EXPECT_TRUE(half.equal(values.to(at::kBFloat16)));
  EXPECT_TRUE(turned.equal(values));
  EXPECT_EQ(one.item<double>(), 7);
  EXPECT_TRUE(file.holds("x", half));
  EXPECT_TRUE(file.holds("x", turned));
  half[699][999] = 0;
  EXPECT_FALSE(file.holds("x", half));
}

TEST(Safetensors, EveryTypeAndShapeRoundTrips) {
  const TemporaryFolder folder;
  const NamedTensors tensors = samples();
  write_safetensors(folder / "f", tensors, {{"format", "pt"}, {"é\"", "\n"}});
  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"é\"", "\n"}}));
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(same_bits(file.read(name), tensor)) << name;
    EXPECT_EQ(file.entry(name).begin % static_cast<int64_t>(tensor.element_size()), 0) << name;
  }
  const std::string bytes = slurp(folder / "f");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST(Safetensors, SpecialValuesKeepTheirBits) {
  const TemporaryFolder folder;
  at::Tensor bits = at::tensor({0x7fc00001, int(0x80000000), 0x7f800000, 1}, at::kInt);
  const at::Tensor floats = bits.view(at::kFloat);
  write_safetensors(folder / "f", {{"x", floats}});
  EXPECT_TRUE(same_bits(SafetensorsFile(folder / "f").read("x"), floats));
}

TEST(Safetensors, NoTensorsAtAll) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {}, {});
  EXPECT_EQ(slurp(folder / "f").substr(8), "{}      ");
  EXPECT_THAT(SafetensorsFile(folder / "f").entries(), IsEmpty());
  write_safetensors(folder / "f", {}, {{"a", "b"}});
  EXPECT_EQ(SafetensorsFile(folder / "f").metadata().at("a"), "b");
}

TEST(Safetensors, StridedAndGradientTensorsAreWrittenPlain) {
  const TemporaryFolder folder;
  const at::Tensor base = at::arange(24, at::kFloat).reshape({4, 6});
  at::Tensor leaf = at::ones({3}).requires_grad_();
  write_safetensors(folder / "f", {{"t", base.t()},
                                   {"slice", base.slice(1, 1, 5, 2)},
                                   {"expanded", at::ones({1}).expand({5})},
                                   {"leaf", leaf}});
  const SafetensorsFile file(folder / "f");
  EXPECT_TRUE(same_bits(file.read("t"), base.t()));
  EXPECT_TRUE(same_bits(file.read("slice"), base.slice(1, 1, 5, 2)));
  EXPECT_TRUE(same_bits(file.read("expanded"), at::ones({5})));
  EXPECT_TRUE(same_bits(file.read("leaf"), at::ones({3})));
}

TEST(Safetensors, ReadsIntoOwnMemory) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"a", at::zeros({2})}, {"b", at::ones({3})}});
  const at::Tensor b = SafetensorsFile(folder / "f").read("b");
  std::filesystem::remove(folder / "f");
  EXPECT_TRUE(same_bits(b.add(1), at::full({3}, 2.0f)));
}

TEST(Safetensors, ReadIntoChecksShapeAndType) {
  const TemporaryFolder folder;
  const at::Tensor value = at::arange(6, at::kFloat).reshape({2, 3}).div(3);
  write_safetensors(folder / "f", {{"weight", value}, {"ids", at::arange(6)}});
  const SafetensorsFile file(folder / "f");
  at::Tensor same = at::empty({2, 3}).requires_grad_();
  file.read_into("weight", same);
  EXPECT_TRUE(same_bits(same, value));
  at::Tensor strided = at::empty({3, 2}).t();
  file.read_into("weight", strided);
  EXPECT_TRUE(same_bits(strided, value));
  at::Tensor half = at::empty({2, 3}, at::kBFloat16);
  EXPECT_THAT(error_of([&] { file.read_into("weight", half); }),
              HasSubstr("tensor `weight` must be BFloat16 [2, 3], is Float [2, 3]"));
  file.read_into("weight", half, Cast::kAllow);
  EXPECT_TRUE(same_bits(half, value.to(at::kBFloat16)));
  at::Tensor other = at::empty({3, 2}), real = at::empty({6});
  EXPECT_THAT(error_of([&] { file.read_into("weight", other, Cast::kAllow); }),
              HasSubstr("must be Float [3, 2], is Float [2, 3]"));
  EXPECT_THAT(error_of([&] { file.read_into("ids", real, Cast::kAllow); }), HasSubstr("is Long"));
  EXPECT_THAT(error_of([&] { file.read("weigth"); }),
              AllOf(HasSubstr("has no tensor `weigth`"), HasSubstr("`weight`")));
}

TEST(Safetensors, WriterTakesTensorsInTheOrderAnnounced) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "f", {{"a", at::kByte, {3}}, {"b", at::kFloat, {2}}});
    EXPECT_THAT(error_of([&] { writer.add("b", at::ones({2})); }), HasSubstr("must be `a`"));
    EXPECT_THAT(error_of([&] { writer.add("a", at::ones({3})); }),
                HasSubstr("announced as Byte [3], is Float [3]"));
    EXPECT_THAT(error_of([&] { writer.add("a", at::Tensor()); }), HasSubstr("dense"));
    EXPECT_THAT(error_of([&] { writer.add("a", at::empty({3}, at::kMeta)); }), HasSubstr("dense"));
    writer.add("a", at::ones({3}, at::kByte));
    EXPECT_THAT(error_of([&] { writer.commit(); }), HasSubstr("`b` announced, but not added"));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
  SafetensorsWriter writer(folder / "f", {{"a", at::kByte, {3}}, {"b", at::kFloat, {2}}});
  writer.add("a", at::ones({3}, at::kByte));
  writer.add("b", at::ones({2}));
  EXPECT_THAT(error_of([&] { writer.add("c", at::ones({2})); }), HasSubstr("one more"));
  writer.commit();
  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.entries()[0].name, "b");  // the wider type first: aligned
  EXPECT_TRUE(same_bits(file.read("a"), at::ones({3}, at::kByte)));
}

TEST(Safetensors, WriterRefusesWhatCannotBeRead) {
  const TemporaryFolder folder;
  const at::Tensor x = at::ones({1});
  const auto write_error = [&](const NamedTensors& tensors, const Metadata& metadata = {}) {
    return error_of([&] { write_safetensors(folder / "f", tensors, metadata); });
  };
  EXPECT_THAT(write_error({{"a", x}, {"a", x}}), HasSubstr("unique"));
  EXPECT_THAT(write_error({{"__metadata__", x}}), HasSubstr("__metadata__"));
  EXPECT_THAT(write_error({{"\xff", x}}), HasSubstr("UTF-8"));
  EXPECT_THAT(write_error({{"a", x}}, {{"k", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(write_error({{"a", at::ones({1}, at::kComplexFloat)}}), HasSubstr("ComplexFloat"));
  EXPECT_THAT(write_error({{"a", at::Tensor()}}), HasSubstr("defined"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Safetensors, FullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const at::Tensor large = at::zeros({100'000});
  EXPECT_THAT(error_on_full_disk(100'000,
                                 [&] {
                                   write_safetensors(folder / "f", {{"large", large}});
                                 }),
              AllOf(HasSubstr((folder / "f").string()), HasSubstr("cannot write")));
  EXPECT_THAT(folder.names(), IsEmpty());
}

}  // namespace
}  // namespace compact
