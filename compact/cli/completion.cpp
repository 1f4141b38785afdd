// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <map>
#include <regex>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/cli/command_help.h"
#include "compact/cli/flags.h"
#include "compact/cli/list.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {
namespace {

std::string bash(), zsh(), fish();

struct Shell {
  const char* name;
  std::string (*script)();
};
constexpr Shell kShells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

struct Completed {
  std::string flag, help;
  std::string words;  // that it takes, divided by spaces; none: files
};

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

std::string without(std::string text, std::string_view unwanted) {
  std::erase_if(text, [&](char c) { return unwanted.find(c) != unwanted.npos; });
  return text;
}

// The words of "float32 (f32, fp32), bfloat16 (bf16)", or of the list in "see `compact list
// models`"; none where it takes anything else.
std::string words_of(const std::string& values) {
  static const std::regex kOthers(R"( \([^)]*\))"), kWords("[a-z0-9_.-]+(, [a-z0-9_.-]+)*");
  for (const ListKind& kind : list_kinds()) {
    std::vector<std::string> names;
    for (const auto& [name, summary] : kind.rows()) names.push_back(name);
    if (values.find(cat("`compact list ", kind.name, "`")) != values.npos) return joined(names);
  }
  const std::string words = std::regex_replace(values, kOthers, "");
  return std::regex_match(words, kWords) ? without(words, ",") : "";
}

std::vector<Completed> flags_of(const Command& command) {
  std::vector<Completed> all;
  for (const std::string& line : split(help_of(command, "words"), '\n')) {
    const std::vector<std::string> parts = split(line, '\t');
    if (parts.size() == 3) all.push_back({parts[0], parts[2], words_of(parts[1])});
  }
  return all;
}

// The arguments without a flag.
std::string bare_words(const Command& command) {
  return command.run == run_list         ? joined(names_of(list_kinds()))
         : command.run == run_completion ? joined(names_of(kShells))
                                         : "";
}

std::string bash() {
  std::string cases;
  for (const Command& c : commands()) {
    std::string flags, values;
    std::map<std::string, std::string> flags_by_words;
    for (const Completed& f : flags_of(c)) {
      flags += f.flag + " ";
      std::string& same = flags_by_words[f.words];
      same += (same.empty() ? "" : "|") + f.flag;
    }
    for (const auto& [words, same] : flags_by_words) {
      values +=
          cat("        ", same, ") ", words.empty() ? "files=1" : "words='" + words + "'", " ;;\n");
    }
    cases += cat("    ", c.name, ")\n      flags='", flags, "--help'\n      bare='", bare_words(c),
                 "'\n");
    if (!values.empty()) cases += cat("      case $flag in\n", values, "      esac\n");
    cases += "      ;;\n";
  }
  return cat(
      "# bash completion of compact: source <(compact completion bash)\n"
      "_compact() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local flags= bare= words= files=\n"
      "  COMPREPLY=()\n"
      "  if [[ $word == '=' ]]; then\n"
      "    word=\n"
      "  elif [[ $flag == '=' ]]; then\n"
      "    flag=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  fi\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '",
      joined(names_of(commands())),
      " --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n",
      cases,
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  elif [[ $files ]]; then\n"
      "    compopt -o filenames\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "  else\n"
      "    COMPREPLY=($(compgen -W \"${words:-$bare}\" -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -F _compact compact\n");
}

std::string zsh() {
  std::string names, cases;
  for (const Command& c : commands()) {
    names += cat("    '", c.name, ":", without(c.summary, "':"), "'\n");
    cases += cat("    ", c.name, ")\n      _arguments \\\n");
    for (const Completed& f : flags_of(c)) {
      const std::string action = f.words.empty() ? "_files" : "(" + f.words + ")";
      cases +=
          cat("        '*", f.flag, "=-[", without(f.help, "'[]:\\"), "]:value:", action, "' \\\n");
    }
    if (const std::string bare = bare_words(c); !bare.empty())
      cases += cat("        '1:name:(", bare, ")' \\\n");
    cases += "        '(- *)--help[shows the flags]'\n      ;;\n";
  }
  return cat(
      "#compdef compact\n"
      "# zsh completion of compact: compact completion zsh > \"${fpath[1]}/_compact\"\n"
      "_compact() {\n"
      "  local -a names=(\n",
      names,
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command names\n"
      "    return\n"
      "  fi\n"
      "  local command=${words[2]}\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n",
      cases,
      "  esac\n"
      "}\n"
      "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
      "  _compact \"$@\"\n"
      "else\n"
      "  compdef _compact compact\n"
      "fi\n");
}

std::string fish() {
  std::string out = "# fish completion of compact: compact completion fish | source\n";
  for (const Command& c : commands()) {
    out += cat("complete -c compact -n __fish_use_subcommand -f -a ", c.name, " -d '",
               without(c.summary, "'"), "'\n");
  }
  for (const Command& c : commands()) {
    const std::string when =
        cat("complete -c compact -n '__fish_seen_subcommand_from ", c.name, "' ");
    for (const Completed& f : flags_of(c)) {
      out += when + "-l " + f.flag.substr(2) + " -d '" + without(f.help, "'\\") + "' ";
      out += f.words.empty() ? "-r\n" : "-x -a '" + f.words + "'\n";
    }
    if (const std::string bare = bare_words(c); !bare.empty())
      out += when + "-f -a '" + bare + "'\n";
  }
  return out;
}

}  // namespace

int run_completion(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact completion", command.summary);
  std::string shell;
  flags.add_positional("SHELL", shell,
                       "bash, zsh or fish; the script's first lines say where it goes");
  if (!flags.parse(arguments)) return kExitOk;
  for (const Shell& s : kShells) {
    if (shell != s.name) continue;
    std::cout << s.script();
    return kExitOk;
  }
  fail("SHELL must be bash, zsh or fish, is `", shell, "`", suggestion(shell, names_of(kShells)));
}

}  // namespace compact::cli
