// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/flags.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/other_names.h"

namespace compact::cli {
namespace {

constexpr size_t kHelpColumn = 34, kHelpWidth = 100;

// "  --name      text", the text broken into lines that begin in its column.
std::string help_row(const std::string& left, const std::string& text) {
  std::string out = "  " + left;
  out += out.size() + 2 > kHelpColumn ? "\n" + std::string(kHelpColumn, ' ')
                                      : std::string(kHelpColumn - out.size(), ' ');
  size_t column = kHelpColumn;
  for (const std::string& word : split(text, ' ')) {
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      out += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

// The flags of `known` that contain the words of `argument` in a row ("--batch_size" in
// "--per_device_train_batch_size"), or whose words begin with its letters ("--lr").
std::vector<std::string> related(const std::string& argument,
                                 const std::vector<std::string>& known) {
  std::vector<std::string> some;
  const size_t begin = argument.find_first_not_of('-');
  if (begin == argument.npos) return some;
  const std::string words = "_" + argument.substr(begin) + "_";
  for (const std::string& flag : known) {
    std::string initials;
    for (const std::string& word : split(flag.substr(2), '_')) initials += word.substr(0, 1);
    const bool holds = ("_" + flag.substr(2) + "_").find(words) != std::string::npos;
    if (holds || (initials.size() > 1 && words == "_" + initials + "_")) some.push_back(flag);
  }
  return some;
}

// "`a`, `b` or `c`".
std::string alternatives(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    out += (i == 0 ? "`" : i + 1 < names.size() ? ", `" : " or `") + names[i] + "`";
  }
  return out;
}

template <class T>
T parsed(const std::optional<T>& value, const std::string& source, const char* what,
         const std::string& text) {
  COMPACT_CHECK(value, source, ": must be ", what, ", is `", text, "`");
  return *value;
}

}  // namespace

Flags::Flags(std::string title, std::string summary)
    : title_(std::move(title)), summary_(std::move(summary)) {}

void Flags::add(Flag flag) {
  if (flag.group.empty()) flag.group = group_;
  entries_.push_back({std::move(flag), {}});
}

void Flags::add(const char* name, std::string& to, const char* help, const char* values) {
  add({.name = name,
       .help = help,
       .values = values,
       .fallback = to,
       .set = [&to](const auto& v, const auto&) { to = v[0]; }});
}

void Flags::add_output(const char* name, std::string& to, const char* help, const char* values) {
  add({.name = name, .help = help, .values = values, .set = [&to](const auto& v, const auto&) {
         check_can_write(v[0]);
         to = v[0];
       }});
}

void Flags::add(const char* name, int64_t& to, const char* help, const char* values) {
  add({.name = name,
       .help = help,
       .values = values,
       .fallback = cat(to),
       .set = [&to](const auto& v, const auto& source) {
         to = parsed(parse_integer(v[0]), source, "an integer", v[0]);
       }});
}

void Flags::add(const char* name, double& to, const char* help, const char* values) {
  add({.name = name,
       .help = help,
       .values = values,
       .fallback = cat(to),
       .set = [&to](const auto& v, const auto& source) {
         to = parsed(parse_number(v[0]), source, "a finite number", v[0]);
       }});
}

void Flags::add(const char* name, bool& to, const char* help) {
  add({.name = name,
       .help = help,
       .fallback = to ? "true" : "false",
       .shape = FlagShape::kBool,
       .set = [&to](const auto& v, const auto& source) {
         COMPACT_CHECK(v[0] == "true" || v[0] == "false", source, ": must be true or false, is `",
                       v[0], "`");
         to = v[0] == "true";
       }});
}

void Flags::add(const char* name, std::vector<std::string>& to, const char* help,
                const char* values) {
  add({.name = name,
       .help = help,
       .values = values,
       .shape = FlagShape::kList,
       .set = [&to](const auto& v, const auto&) { to = v; }});
}

void Flags::add_positional(const char* name, std::string& to, const char* help) {
  positional_ = name;
  positional_help_ = help;
  to_positional_ = &to;
}

bool Flags::parse(const std::vector<std::string>& arguments) {
  if (read(arguments)) return true;
  std::cout << (form_.empty() ? help_text() : form_ == "words" ? help_words() : help_markdown());
  return false;
}

bool Flags::read(const std::vector<std::string>& arguments) {
  constexpr std::string_view kForm = "--help=";
  if (arguments.size() == 1 && arguments[0].starts_with(kForm)) {
    form_ = arguments[0].substr(kForm.size());
    COMPACT_CHECK(form_ == "markdown" || form_ == "words",
                  "--help: must be markdown or words, is `", form_, "`");
    return false;
  }
  const auto is_flag = [](const std::string& a) {  // a number below zero is a value
    return a.size() > 1 && a[0] == '-' && !(a[1] >= '0' && a[1] <= '9') && !a.starts_with("---");
  };
  bool asks_for_help = false, no_more_flags = false;
  std::string* positional = to_positional_;
  std::vector<std::string> extra;
  for (size_t i = 0; i < arguments.size();) {
    const std::string& argument = arguments[i++];
    Entry* entry = no_more_flags ? nullptr : entry_of(argument);
    if (!entry) {
      const bool value = no_more_flags || !is_flag(argument);
      if (value && positional) {
        COMPACT_CHECK(!argument.empty(), positional_, " is empty");
        *std::exchange(positional, nullptr) = argument;
      } else if (!value && (argument == "--help" || argument.starts_with(kForm) ||
                            argument.starts_with("-h"))) {
        asks_for_help = true;
      } else {
        extra.push_back(argument);
        no_more_flags |= argument == "--";
      }
      continue;
    }
    std::vector<std::string> values;
    const size_t equals = argument.find('=');
    if (equals != argument.npos) values.push_back(argument.substr(equals + 1));
    const FlagShape shape = entry->flag.shape;
    if (values.empty() && shape != FlagShape::kBool) {
      COMPACT_CHECK(i < arguments.size(), "--", entry->flag.name, ": a value is missing");
      values.push_back(arguments[i++]);
    }
    if (const bool list = shape == FlagShape::kList; list || values.empty()) {
      while (i < arguments.size() && !is_flag(arguments[i]) && (list || values.empty()))
        values.push_back(arguments[i++]);
      if (i < arguments.size() && arguments[i] == "--") ++i;  // ends them
    }
    if (values.empty()) values.emplace_back("true");
    entry->values.insert(entry->values.end(), values.begin(), values.end());
  }
  if (asks_for_help) return false;
  if (extra.size() > no_more_flags) fail_on_extra(extra[0]);
  const std::vector<std::string> flags = names();
  for (Entry& entry : entries_) {
    std::vector<std::string>& values = entry.values;
    const std::string& name = entry.flag.name;
    for (const std::string& v : values) {
      COMPACT_CHECK(!v.empty() || entry.flag.may_be_empty, "--", name,
                    ": its value is empty; to leave it as it is, leave the flag out");
      COMPACT_CHECK(std::ranges::find(flags, v.substr(0, v.find('='))) == flags.end(), "--", name,
                    ": a value is missing before `", v, "`");
    }
    if (entry.flag.shape == FlagShape::kList) continue;
    for (const std::string& v : values) {
      COMPACT_CHECK(v == values[0], "--", name, " is given twice, as `", values[0], "` and as `", v,
                    "`");
    }
    if (!values.empty()) values.resize(1);
  }
  return true;
}

Flags::Entry* Flags::entry_of(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return name == "--" + entry.flag.name; });
  return found == entries_.end() ? nullptr : &*found;
}

void Flags::fail_on_extra(const std::string& extra) const {
  const std::string argument = extra.substr(0, extra.find('='));
  if (!argument.starts_with("-")) {
    fail("unexpected argument `", extra, "`: values follow a flag, each in one word; see `", title_,
         " --help`");
  }
  const size_t begin = std::min(argument.find_first_not_of('-'), argument.size());
  const std::string here = name_here(std::string_view(argument).substr(begin));
  COMPACT_CHECK(here.empty(), "unknown flag `", argument, "`: ", here);
  constexpr size_t kMost = 4;  // a list of all flags would be no one-line message
  std::vector<std::string> meant = related(argument, names());
  if (const std::string near = nearest(argument, names()); meant.empty() && !near.empty())
    meant = {near};
  fail("unknown flag `", argument, "`",
       meant.empty() || meant.size() > kMost ? "; see `" + title_ + " --help`"
                                             : "; did you mean " + alternatives(meant) + "?");
}

std::vector<std::string> Flags::names() const {
  std::vector<std::string> all;
  for (const Entry& entry : entries_) all.push_back("--" + entry.flag.name);
  return all;
}

void Flags::apply() const {
  for (const Entry& entry : entries_) {
    if (!entry.values.empty()) entry.flag.set(entry.values, "--" + entry.flag.name);
  }
}

std::vector<std::string> Flags::given(const std::vector<std::string>& without) const {
  std::vector<std::string> arguments;
  for (const Entry& entry : entries_) {
    const std::string& name = entry.flag.name;
    if (std::ranges::find(without, name) != without.end()) continue;
    for (const std::string& v : entry.values) arguments.push_back("--" + name + "=" + v);
  }
  return arguments;
}

std::string Flags::help_words() const {
  std::string out;
  for (const Entry& entry : entries_) {
    const Flag& f = entry.flag;
    out += "--" + f.name + "\t" + (f.shape == FlagShape::kBool ? "true, false" : f.values) + "\t" +
           f.help + "\n";
  }
  return out;
}

std::string Flags::help_markdown() const {
  std::string out = "## " + title_ + "\n\n" + summary_ + "\n";
  if (!positional_.empty()) out += "\n`" + positional_ + "`: " + positional_help_ + ".\n";
  std::string group;
  for (const Entry& entry : entries_) {
    const Flag& f = entry.flag;
    if (f.group != group || &entry == &entries_.front()) {
      group = f.group;
      out += "\n### " + group + "\n\n| flag | what it is | takes | default |\n|---|---|---|---|\n";
    }
    const std::string values = f.shape == FlagShape::kBool ? "true, false" : f.values;
    out += "| `--" + f.name + "` | " + in_table(f.help) + " | " + in_table(values) + " | " +
           (f.fallback.empty() ? "" : "`" + f.fallback + "`") + " |\n";
  }
  return out;
}

std::string in_table(const std::string& text) {
  std::string out;
  bool code = false;  // there only the table's own mark is escaped
  for (const char c : text) {
    if (c == '`') code = !code;
    if (c == '|' || (!code && (c == '<' || c == '>' || c == '*' || c == '_'))) out += '\\';
    out += c;
  }
  return out;
}

std::string Flags::help_text() const {
  std::string out = summary_ + "\n\nusage: " + title_;
  if (!positional_.empty()) out += " [" + positional_ + "]";
  if (!entries_.empty()) out += " [--flag value]...";
  out += "\n";
  if (!positional_.empty()) out += "\n" + help_row(positional_, positional_help_);
  std::string group;
  for (const Entry& entry : entries_) {
    const Flag& f = entry.flag;
    if (f.group != group) out += "\n" + (group = f.group) + "\n";
    std::string text = f.help;
    if (!f.values.empty() && f.shape != FlagShape::kBool) text += " (" + f.values + ")";
    if (!f.fallback.empty()) text += " [" + f.fallback + "]";
    out += help_row("--" + f.name, text);
  }
  return out;
}

}  // namespace compact::cli
