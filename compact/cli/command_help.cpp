// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/command_help.h"

#include <iostream>
#include <sstream>

namespace compact::cli {
namespace {

// Captures standard output while it lives.
class Captured {
 public:
  Captured() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() { std::cout.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

}  // namespace

std::string help_of(const Command& command, const std::string& form) {
  const Captured captured;
  command.run(command, {"--help=" + form});
  return captured.text();
}

}  // namespace compact::cli
