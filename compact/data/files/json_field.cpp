// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/json_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr size_t kMostKeys = 64;
constexpr std::string_view kString = "a string", kNumber = "a number";

// Listens to the parser and remembers the fields; nested values pass by unstored.
class FieldListener final : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldListener(std::span<JsonField> fields, std::vector<std::string>& others)
      : fields_(fields), others_(others) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t v) override { return number(std::to_string(v)); }
  bool number_unsigned(number_unsigned_t v) override { return number(std::to_string(v)); }
  bool number_float(number_float_t, const string_t& v) override { return number(v); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& v) override {
    if (here_) here_->text.swap(v);
    return value(kString);
  }
  bool start_object(std::size_t) override { return open("an object", true); }
  bool start_array(std::size_t) override { return open("an array", false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (depth_ != 1) return true;
    here_ = nullptr;
    for (JsonField& field : fields_) {
      if (field.name == k) here_ = &field;
    }
    if (!here_ && others_.size() < kMostKeys) others_.push_back(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    std::string why = e.what();
    const size_t start = why.find("] ");  // after the library's own error number
    if (start != why.npos) why = why.substr(start + 2);
    error_ = cat("must be JSON: ", why);
    // Bytes of the file must not break the line of the message.
    for (char& c : error_) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    return false;
  }

  std::string problem() const {
    if (!error_.empty()) return error_;
    return object_ ? "" : cat("must be a JSON object, is ", outer_);
  }

 private:
  bool number(std::string text) {
    if (here_) here_->text.swap(text);
    return value(kNumber);
  }
  bool value(std::string_view kind) {
    if (depth_ == 0) outer_ = kind;
    if (here_) here_->kind = kind;
    here_ = nullptr;
    return true;
  }
  bool open(std::string_view kind, bool object) {
    if (depth_ == 0) object_ = object;
    value(kind);
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::span<JsonField> fields_;
  std::vector<std::string>& others_;
  JsonField* here_ = nullptr;  // whose value comes next
  std::string_view outer_;
  std::string error_;
  int64_t depth_ = 0;
  bool object_ = false;
};

// The code of the escape that `text` begins with, \u and four hexadecimal digits; -1 where it
// begins with none.
int escaped(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return -1;
  int value = 0;
  for (const char c : text.substr(2, 4)) {
    const size_t digit = std::string_view("0123456789abcdefABCDEF").find(c);
    if (digit == std::string_view::npos) return -1;
    value = value * 16 + static_cast<int>(digit < 16 ? digit : digit - 6);
  }
  return value;
}

// The line with \ufffd in the place of each escape that is half a pair of surrogates.
std::string with_whole_pairs(std::string_view line, int64_t& halves) {
  std::string out;
  while (!line.empty()) {
    size_t length = 1;
    const int first = escaped(line);
    if (line[0] == '\\') length = first < 0 ? std::min<size_t>(2, line.size()) : 6;
    std::string_view part = line.substr(0, length);
    if (first >= 0xD800 && first <= 0xDFFF) {
      const int second = escaped(line.substr(6));
      if (first < 0xDC00 && second >= 0xDC00 && second <= 0xDFFF) {
        part = line.substr(0, length = 12);
      } else {
        part = "\\ufffd";
        ++halves;
      }
    }
    out += part;
    line.remove_prefix(length);
  }
  return out;
}

}  // namespace

bool json_fields(std::string_view line, std::span<JsonField> fields,
                 std::vector<std::string>& others, std::string& error, int64_t* replaced) {
  for (JsonField& field : fields) field.text.clear(), field.kind = {};
  others.clear();
  FieldListener listener(fields, others);
  nlohmann::json::sax_parse(line.begin(), line.end(), &listener);
  error = listener.problem();
  if (error.empty() || !replaced) return error.empty();
  int64_t halves = 0;
  const std::string repaired = with_whole_pairs(line, halves);
  if (halves == 0 || !json_fields(repaired, fields, others, error)) return false;
  *replaced += halves;
  return true;
}

bool json_text_field(std::string_view line, std::string_view field, std::string& text,
                     std::string& error, int64_t* replaced) {
  JsonField wanted{field};
  std::vector<std::string> others;
  if (!json_fields(line, {&wanted, 1}, others, error, replaced)) return false;
  if (wanted.kind.empty()) {
    error = cat("has no field `", field, "`", others.empty() ? "" : suggestion(field, others));
  } else if (wanted.kind != kString) {
    error = cat("field `", field, "` must be a string, is ", wanted.kind);
  }
  text.swap(wanted.text);
  return error.empty();
}

}  // namespace compact
