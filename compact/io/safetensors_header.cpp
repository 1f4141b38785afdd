// SPDX-License-Identifier: Apache-2.0
#include "compact/io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "compact/base/check.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
    {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
    {"U8", at::kByte},    {"BOOL", at::kBool},
};

// Reads the header as a stream: nothing but the expected is kept, so neither deep nor long
// nonsense costs memory.
class HeaderParser : public nlohmann::json_sax<json> {
 public:
  HeaderParser(SafetensorsHeader& header, std::string_view where)
      : header_(header), where_(where) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const std::string&) override {
    return unexpected("a number that is not an integer below 2^64");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return unexpected("a number");
    COMPACT_CHECK(value <= static_cast<uint64_t>(kLargest), here(),
                  "numbers must be below 2^63, one is ", value);
    const size_t most = state_ == State::kShape ? kMostDimensions : 2;
    COMPACT_CHECK(numbers_.size() < most, here(), field_, " must have at most ", most, " numbers");
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      header_.metadata[field_] = value;
      return true;
    }
    if (state_ != State::kTensor || field_ != "dtype") return unexpected("a string");
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const auto& row) { return row.first == value; });
    COMPACT_CHECK(type != std::end(kTypes), here(),
                  "dtype must be F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL, is `", value,
                  "`");
    header_.entries.back().dtype = type->second;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && name_ == kMetadataKey) {
      state_ = State::kMetadata;
    } else if (state_ == State::kTop) {
      state_ = State::kTensor;
      header_.entries.push_back({});
      header_.entries.back().name = name_;
    } else {
      return unexpected("an object");
    }
    fields_.clear();
    return true;
  }

  bool key(std::string& value) override {
    if (state_ == State::kTop) {
      name_ = value;
      COMPACT_CHECK(names_.insert(value).second, where_, ": names must be unique, `", value,
                    "` is given twice");
      return true;
    }
    field_ = value;
    COMPACT_CHECK(state_ == State::kMetadata || field_ == "dtype" || field_ == "shape" ||
                      field_ == "data_offsets",
                  here(), "fields must be dtype, shape and data_offsets, one is `", field_, "`");
    COMPACT_CHECK(fields_.insert(value).second, here(), "fields must be unique, `", field_,
                  "` is given twice");
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      COMPACT_CHECK(fields_.size() == 3, here(), "must have dtype, shape and data_offsets");
    }
    state_ = state_ == State::kTop ? State::kStart : State::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || field_ == "dtype") return unexpected("an array");
    state_ = field_ == "shape" ? State::kShape : State::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    TensorEntry& entry = header_.entries.back();
    if (state_ == State::kShape) {
      entry.shape = numbers_;
    } else {
      COMPACT_CHECK(numbers_.size() == 2, here(), "data_offsets must have 2 numbers, has ",
                    numbers_.size());
      entry.begin = numbers_[0];
      entry.end = numbers_[1];
    }
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    fail(where_, ": header must be valid JSON, is not at byte ", position);
  }

 private:
  enum class State { kStart, kTop, kTensor, kMetadata, kShape, kOffsets };

  // "FILE: tensor `NAME`: ", or "FILE: " where no tensor is open.
  std::string here() const {
    return name_.empty() ? cat(where_, ": ") : cat(where_, ": tensor `", name_, "`: ");
  }
  bool unexpected(const char* what) const { fail(here(), "unexpected ", what, " in the header"); }

  SafetensorsHeader& header_;
  std::string_view where_;
  State state_ = State::kStart;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  std::vector<int64_t> numbers_;
};

// Tensors must cover the data without overlap or gap.
void check_offsets(std::vector<TensorEntry>& entries, int64_t data_bytes, std::string_view where) {
  for (const TensorEntry& entry : entries) {
    const std::string here = cat(where, ": tensor `", entry.name, "`");
    COMPACT_CHECK(entry.begin <= entry.end && entry.end <= data_bytes, here,
                  ": data_offsets must be ordered and at most ", data_bytes, ", are [", entry.begin,
                  ", ", entry.end, "]");
    const int64_t bytes = tensor_bytes(entry.dtype, entry.shape, here);
    COMPACT_CHECK(bytes == entry.end - entry.begin, here, ": dtype and shape need ", bytes,
                  " bytes, data_offsets give ", entry.end - entry.begin);
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    COMPACT_CHECK(entry.begin == covered, where, ": tensors must follow without gap or overlap, `",
                  entry.name, "` begins at ", entry.begin, " after ", covered);
    covered = entry.end;
  }
  COMPACT_CHECK(covered == data_bytes, where, ": tensors must cover the data, cover ", covered,
                " of ", data_bytes, " bytes");
}

}  // namespace

std::string_view safetensors_dtype(at::ScalarType type, std::string_view where) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  fail(where, ": safetensors files cannot hold dtype ", c10::toString(type));
}

int64_t tensor_bytes(at::ScalarType type, const std::vector<int64_t>& shape,
                     std::string_view where) {
  const int64_t element = static_cast<int64_t>(c10::elementSize(type));
  int64_t product = element;
  bool empty = false;
  for (int64_t size : shape) {
    COMPACT_CHECK(size >= 0, where, ": sizes must not be negative, one is ", size);
    empty |= size == 0;
    COMPACT_CHECK(size <= 1 || product <= kLargest / size, where,
                  ": the product of the sizes must be below 2^63 bytes");
    product *= std::max<int64_t>(size, 1);
  }
  return empty ? 0 : product;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                           std::string_view where) {
  COMPACT_CHECK(text.starts_with('{'), where, ": header must begin with `{`");
  // The JSON reader takes a NUL for the end of the text and would not see what follows.
  COMPACT_CHECK(text.find('\0') == text.npos, where, ": header must not have NUL bytes");
  SafetensorsHeader header;
  HeaderParser parser(header, where);
  json::sax_parse(text, &parser);
  check_offsets(header.entries, data_bytes, where);
  return header;
}

std::string build_safetensors_header(std::vector<TensorEntry>& entries, const Metadata& metadata,
                                     std::string_view where) {
  std::set<std::string_view> names{kMetadataKey};
  std::vector<TensorEntry*> order;
  for (TensorEntry& entry : entries) {
    COMPACT_CHECK(names.insert(entry.name).second, where, ": tensor names must be unique and not `",
                  kMetadataKey, "`, one is `", entry.name, "`");
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return c10::elementSize(a->dtype) > c10::elementSize(b->dtype);
  });
  std::string text = "{";
  int64_t offset = 0;
  try {
    if (!metadata.empty()) text += cat("\"", kMetadataKey, "\":", json(metadata).dump(), ",");
    for (TensorEntry* entry : order) {
      const std::string here = cat(where, ": tensor `", entry->name, "`");
      COMPACT_CHECK(entry->shape.size() <= kMostDimensions, here, ": must have at most ",
                    kMostDimensions, " dimensions, has ", entry->shape.size());
      const int64_t bytes = tensor_bytes(entry->dtype, entry->shape, here);
      COMPACT_CHECK(bytes <= kLargest - offset, here, ": the file must be below 2^63 bytes");
      entry->begin = offset;
      entry->end = offset += bytes;
      text += cat(json(entry->name).dump(), ":{\"dtype\":\"", safetensors_dtype(entry->dtype, here),
                  "\",\"shape\":", json(entry->shape).dump(), ",\"data_offsets\":[", entry->begin,
                  ",", entry->end, "]},");
    }
  } catch (const json::exception&) {
    fail(where, ": tensor names and metadata must be UTF-8");
  }
  if (text.back() == ',') text.pop_back();
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  COMPACT_CHECK(static_cast<int64_t>(text.size()) <= kLargestHeader, where,
                ": header must be at most ", kLargestHeader, " bytes, has ", text.size());
  uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace compact
