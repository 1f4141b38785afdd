// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/npy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kLongestHeader = 4096;
constexpr size_t kMostDimensions = 4;
constexpr int64_t kMostValues = int64_t{1} << 40;

std::optional<at::ScalarType> type_of(std::string_view name) {
  if (name == "|i1") return at::kChar;
  if (name == "|u1") return at::kByte;
  if (name == "<i2") return at::kShort;
  if (name == "<i4") return at::kInt;
  if (name == "<i8") return at::kLong;
  if (name == "<f4") return at::kFloat;
  if (name == "<f8") return at::kDouble;
  return {};
}

// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } and spaces, the keys in any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : left_(text), where_(where) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !type_) {
        const std::string_view name = quoted();
        type_ = type_of(name);
        COMPACT_CHECK(type_, where_, ": types are |i1, |u1, <i2, <i4, <i8, <f4 and <f8, this is `",
                      printable(name), "`");
      } else if (key == "fortran_order" && !order_) {
        COMPACT_CHECK(!word("True"), where_, ": must be in C order, is in Fortran's");
        order_ = word("False");
        if (!order_) wrong();
      } else if (key == "shape" && !shape_) {
        shape();
      } else {
        wrong();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    spaces();
    if (left_ != "\n" || !type_ || !order_ || !shape_) wrong();
  }
  at::ScalarType type() const { return *type_; }
  const std::vector<int64_t>& sizes() const { return *shape_; }

 private:
  [[noreturn]] void wrong() const {
    fail(where_, ": the npy header must be {'descr': ..., 'fortran_order': ..., 'shape': ...}, is ",
         "wrong at `", printable(left_.substr(0, 20)), "`");
  }
  void spaces() {
    while (left_.starts_with(' ')) left_.remove_prefix(1);
  }
  bool accept(char c) {
    spaces();
    if (!left_.starts_with(c)) return false;
    left_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) wrong();
  }
  bool word(std::string_view w) {
    spaces();
    if (!left_.starts_with(w)) return false;
    left_.remove_prefix(w.size());
    return true;
  }
  std::string_view quoted() {
    expect('\'');
    const size_t end = left_.find('\'');
    if (end == left_.npos) wrong();
    const std::string_view text = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return text;
  }
  void shape() {
    shape_.emplace();
    expect('(');
    while (!accept(')')) {
      spaces();
      const size_t digits = std::min(left_.find_first_not_of("0123456789"), left_.size());
      const auto size = parse_integer(left_.substr(0, digits));
      if (!size || shape_->size() == kMostDimensions) wrong();
      left_.remove_prefix(digits);
      shape_->push_back(*size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view left_;
  const std::string& where_;
  std::optional<at::ScalarType> type_;
  bool order_ = false;
  std::optional<std::vector<int64_t>> shape_;
};

}  // namespace

at::Tensor parse_npy(std::string_view bytes, const std::string& where) {
  const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>(bytes[i])}; };
  constexpr std::string_view kMagic = "\x93NUMPY";
  COMPACT_CHECK(bytes.size() >= 12 && bytes.starts_with(kMagic), where,
                ": an npy file begins with \\x93NUMPY and its header's length");
  COMPACT_CHECK(byte(6) >= 1 && byte(6) <= 3 && byte(7) == 0, where,
                ": versions of npy are 1.0 to 3.0, this is ", byte(6), ".", byte(7));
  size_t begin = 10, length = byte(8) | byte(9) << 8;
  if (byte(6) > 1) {
    begin = 12;
    length |= byte(10) << 16 | byte(11) << 24;
  }
  COMPACT_CHECK(length <= kLongestHeader, where, ": the npy header must have at most ",
                kLongestHeader, " bytes, has ", length);
  COMPACT_CHECK(bytes.size() - begin >= length, where, ": the npy header has ", length,
                " bytes, there are ", bytes.size() - begin);
  HeaderParser header(bytes.substr(begin, length), where);
  header.parse();

  int64_t values = 1;  // zeros taken as ones, so that strides fit too
  bool empty = false;
  for (const int64_t size : header.sizes()) {
    empty |= size == 0;
    COMPACT_CHECK(size == 0 || values <= kMostValues / size, where, ": shape ",
                  at::IntArrayRef(header.sizes()), " has too many values");
    values *= std::max<int64_t>(size, 1);
  }
  if (empty) values = 0;
  const std::string_view data = bytes.substr(begin + length);
  const auto wanted = static_cast<size_t>(values) * c10::elementSize(header.type());
  COMPACT_CHECK(data.size() == wanted, where, ": shape ", at::IntArrayRef(header.sizes()), " of ",
                header.type(), " has ", wanted, " bytes, there are ", data.size());
  at::Tensor array = at::empty(header.sizes(), header.type());
  if (wanted > 0) std::memcpy(array.data_ptr(), data.data(), wanted);
  return array;
}

}  // namespace compact
