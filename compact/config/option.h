// SPDX-License-Identifier: Apache-2.0
// The one table of the settings of a run. A row has an option's name, values, commands, tasks and
// rule for resumed runs; flags, configuration files, checks and --print_config all come from it.
// Its rows are in options_*.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "compact/config/config.h"

namespace compact {

// How a resumed run treats an option that differs from the run before.
enum class ResumeRule : uint8_t {
  kKept,    // refuses: results depend on it
  kWarned,  // goes on with a warning: results change in a way that the user may want
  kFree,    // goes on: only outputs change, or the named files are compared by content
  kPolicy,  // goes on where the policies are the same, whatever options made them
};

// The commands that take an option, as bits.
struct Commands {
  enum Bit : uint32_t {
    kTrain = 1,
    kCompare = 2,   // for all runs of a comparison
    kCompared = 4,  // for one of them
    kPlan = 8,
    kEval = 16,
    kGenerate = 32,
    kVisualize = 64,
    kPrepare = 128,
    kRun = kTrain | kCompare | kCompared,
    kRunOrPlan = kRun | kPlan,
  };
};

// Numbers from `least` to `most`.
struct ValueRange {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double least = -kNone, most = kNone;
  bool above = false, below = false;  // `least`, `most` themselves are outside

  static constexpr ValueRange at_least(double x) { return {.least = x}; }
  static constexpr ValueRange from(double least, double most) {
    return {.least = least, .most = most};
  }
  static constexpr ValueRange positive(double most = kNone) {
    return {.least = 0, .most = most, .above = true};
  }
  static constexpr ValueRange part() { return {.least = 0, .most = 1, .below = true}; }

  bool holds(double x) const;
  std::string rule() const;  // "at least 1", "from 1 to 9", "positive", "in [0, 1)"
};

// A word that an option takes, and its synonyms.
struct Choice {
  Choice(std::string name, std::vector<std::string> also = {})
      : name(std::move(name)), also(std::move(also)) {}
  std::string name;
  std::vector<std::string> also;
};

// A form of texts: the check, and the rule in words, "a number with a unit".
struct TextForm {
  bool (*holds)(const std::string& text) = nullptr;
  std::string rule = {};
};

// A member without a default: a row that leaves it out does not compile.
template <class T>
class Required {
 public:
  constexpr Required(T value) : value_(value) {}
  constexpr operator T() const { return value_; }

 private:
  T value_;
};

struct ConfigOption {
  using Member =
      std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
                   bool TrainConfig::*, std::vector<std::string> TrainConfig::*>;
  struct OtherHelp {
    uint32_t commands;
    std::string help;
  };

  std::string name;
  Member member;
  std::string help;
  std::string values =
      {};  // its values for --help, "DIR", where none of the next three describes them
  // Values that it takes besides its default: numbers in a range, a word of a list, text of a form.
  ValueRange range = {};
  std::vector<Choice> choices = {};
  TextForm form = {};
  Required<ResumeRule> resume;
  uint32_t commands = Commands::kRunOrPlan;
  std::vector<OtherHelp> elsewhere = {};  // another `help` for some commands
  std::vector<std::string> tasks = {};    // tasks that read it; empty: all
  // Another option, and the values of it with which this option takes effect.
  std::pair<std::string, std::vector<std::string>> beside = {};
  std::string projects = {};  // the setting of `project` lines that it overrides
  std::string group = {};     // heading of its part of the table
};
std::span<const ConfigOption> config_options();

// The texts on an option, and on its values, in --help of a command (one bit of Commands).
const std::string& help_of(const ConfigOption& option, uint32_t command);
std::string values_of(const ConfigOption& option);

// Sets one option from text; an empty one is the default of options without a value. `source`
// ("--max_steps", "run.toml: max_steps") begins the message of the InputError on an unknown name
// (with a suggestion) or a value of the wrong type.
void set_option(TrainConfig& config, std::string_view name, const std::vector<std::string>& values,
                const std::string& source);

// The option's value as text, as it would be written in a flag; lists joined by a space.
std::string option_text(const TrainConfig& config, const ConfigOption& option);
// The shortest text that reads back to the same number.
std::string number_text(double x);
// Whether it has another value than a new TrainConfig.
bool is_given(const TrainConfig& config, const ConfigOption& option);

// Throws InputError, with option, rule and value, on the first value that its row does not take.
void check_values(const TrainConfig& config);
// A warning for each given option that nothing reads: another task, or another value `beside` it.
std::vector<std::string> ignored_options(const TrainConfig& config);

// The types of weights, activations and moments.
std::span<const Choice> element_types();
// The name of the element type of which `name` is a synonym (bf16, f32, fp32), else `name`.
std::string type_name(const std::string& name);

}  // namespace compact
