// SPDX-License-Identifier: Apache-2.0
#include "compact/data/json_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

// Listens to the parser and remembers the field; nested values pass by unstored.
class FieldListener final : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldListener(std::string_view field, std::string& text) : field_(field), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& v) override {
    if (here_) text_.swap(v);
    return value("a string");
  }
  bool start_object(std::size_t) override { return open("an object", true); }
  bool start_array(std::size_t) override { return open("an array", false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (depth_ != 1) return true;
    here_ = k == field_;
    if (!here_ && keys_.size() < 16) keys_.push_back(k);
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
    if (!object_) return "must be a JSON object, is " + outer_;
    if (kind_.empty()) {
      return cat("has no field `", field_, "`", keys_.empty() ? "" : suggestion(field_, keys_));
    }
    if (kind_ != "a string") return cat("field `", field_, "` must be a string, is ", kind_);
    return {};
  }

 private:
  bool value(const char* kind) {
    if (depth_ == 0) outer_ = kind;
    if (here_) kind_ = kind;
    here_ = false;
    return true;
  }
  bool open(const char* kind, bool object) {
    if (depth_ == 0) object_ = object;
    value(kind);
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string field_;
  std::string& text_;
  std::vector<std::string> keys_;
  std::string kind_, outer_, error_;
  int64_t depth_ = 0;
  bool here_ = false, object_ = false;
};

}  // namespace

bool json_text_field(std::string_view line, std::string_view field, std::string& text,
                     std::string& error) {
  FieldListener listener(field, text);
  nlohmann::json::sax_parse(line.begin(), line.end(), &listener);
  error = listener.problem();
  return error.empty();
}

}  // namespace compact
