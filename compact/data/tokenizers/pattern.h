// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json files, run by ICU. They come from outside: one that takes
// too long, or too much memory, ends in an InputError.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/function_ref.h"

struct URegularExpression;

namespace compact {

class Pattern {
 public:
  // `literal`: the text itself is looked for. Throws InputError beginning with `where` where it is
  // no expression, or uses what ICU and Hugging Face's library (Oniguruma) understand differently.
  Pattern(const std::string& expression, bool literal, const std::string& where);

  // The same for another thread; one Pattern is for one thread at a time.
  Pattern clone() const;

  // Cuts `text` (well-formed UTF-8) into matches and what lies between them, none empty, in order.
  void split(std::string_view text, FunctionRef<void(std::string_view, bool is_match)> part);

  const std::string& expression() const { return expression_; }

 private:
  Pattern() = default;
  struct Close {
    void operator()(URegularExpression* regex) const;
  };
  std::unique_ptr<URegularExpression, Close> regex_;
  std::string expression_, where_;
  std::vector<char16_t> units_;  // the text, as ICU takes it
};

}  // namespace compact
