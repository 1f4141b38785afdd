// SPDX-License-Identifier: Apache-2.0
// The flags of a command: `--name value`, `--name=value`, lists (`--name a b`, or repeated), and
// booleans (`--name`, `--name=false`). A flag that is given twice with different values, or with an
// empty one, is an error. `--help` shows them all, `--help=markdown` as a page's section,
// `--help=words` one a line for programs: name, what it takes and help, divided by tabs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace compact::cli {

enum class FlagShape : uint8_t { kOne, kBool, kList };

struct Flag {
  std::string name;  // without dashes
  std::string group, help;
  std::string values;    // what it takes, for --help
  std::string fallback;  // the value where it is not given, for --help
  FlagShape shape = FlagShape::kOne;
  bool may_be_empty = false;  // an empty value has a meaning
  // Takes the values; `source` ("--name") begins the message of the InputError on a wrong one.
  std::function<void(const std::vector<std::string>& values, const std::string& source)> set;
};

class Flags {
 public:
  // `title` is what the usage line begins with: "compact train".
  Flags(std::string title, std::string summary);

  void add(Flag flag);
  // Flags that set a variable, whose value now is the one that --help shows.
  void add(const char* name, std::string& to, const char* help, const char* values = "TEXT");
  void add(const char* name, int64_t& to, const char* help, const char* values = "N");
  void add(const char* name, double& to, const char* help, const char* values = "X");
  void add(const char* name, bool& to, const char* help);
  void add(const char* name, std::vector<std::string>& to, const char* help,
           const char* values = "FILE...");
  // A file that the command writes when its work is done.
  void add_output(const char* name, std::string& to, const char* help, const char* values = "FILE");
  // One optional argument without a flag.
  void add_positional(const char* name, std::string& to, const char* help);
  // The group of the flags added from here on.
  void group(std::string name) { group_ = std::move(name); }

  // Reads the command line (without program and command). Returns false where it asks for help,
  // which is then written to standard output, in the form that was asked for. Throws InputError,
  // with a suggestion on an unknown flag.
  bool parse(const std::vector<std::string>& arguments);
  // Hands the values that were given to their `set`.
  void apply() const;
  // As `--name=value`, those given but the ones named.
  std::vector<std::string> given(const std::vector<std::string>& without) const;

 private:
  struct Entry {
    Flag flag;
    std::vector<std::string> values;
  };
  bool read(const std::vector<std::string>& arguments);
  // The flag of "--name" or "--name=value"; null: there is none.
  Entry* entry_of(const std::string& argument);
  [[noreturn]] void fail_on_extra(const std::string& extra) const;
  std::string help_text() const;
  std::string help_markdown() const;
  std::string help_words() const;
  std::vector<std::string> names() const;  // with dashes

  std::string title_, summary_, group_ = "Flags", positional_, positional_help_;
  std::string form_;  // of help: "", markdown or words
  std::string* to_positional_ = nullptr;
  std::vector<Entry> entries_;
};

// A cell of a table in Markdown.
std::string in_table(const std::string& text);

}  // namespace compact::cli
