// SPDX-License-Identifier: Apache-2.0
// The parts of the table of options, in their order.
#pragma once

#include <string>
#include <vector>

#include "compact/base/named.h"
#include "compact/config/option.h"

namespace compact {

struct OptionGroup {
  std::string name;  // the heading of --help
  std::vector<ConfigOption> rows;
};

// The beginning of a row: the member of TrainConfig, whose name is the option's, and its help.
#define OPTION(of, text) .name = #of, .member = &TrainConfig::of, .help = text

OptionGroup options_of_model();
OptionGroup options_of_adapters();
OptionGroup options_of_data();
OptionGroup options_of_length();
OptionGroup options_of_optimizer();
OptionGroup options_of_machine();
OptionGroup options_of_memory();
OptionGroup options_of_output();

// More epochs would overflow the count of steps in int64.
inline constexpr double kMostEpochs = 1e6;

// The names in a table, as choices of an option.
template <class Table>
std::vector<Choice> choices_of(const Table& table) {
  const std::vector<std::string> names = names_of(table);
  return {names.begin(), names.end()};
}

}  // namespace compact
