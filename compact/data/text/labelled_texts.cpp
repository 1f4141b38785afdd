// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/labelled_texts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kMostTextBytes = size_t{1} << 32;
constexpr size_t kRowBytes = 2 * sizeof(std::string) + sizeof(float);
constexpr size_t kMostClasses = size_t{1} << 16;
constexpr int64_t kUnlabelled = -1;  // in data sets of Hugging Face
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

// An integer without leading zeros, with `floats` also as 3.0 or 3.00, as tables of floats have it.
std::optional<int64_t> whole_number(std::string_view text, bool floats) {
  if (const size_t point = text.find('.'); floats && point != text.npos) {
    const std::string_view rest = text.substr(point + 1);
    if (!rest.empty() && rest.find_first_not_of('0') == rest.npos) text = text.substr(0, point);
  }
  const std::string_view digits = text.substr(text.starts_with('-'));
  if (digits.size() > 1 && digits[0] == '0') return {};  // a code
  return parse_integer(text);
}

// Labels as texts become numbers.
class Labels {
 public:
  explicit Labels(const RowRules& rules) : rules_(rules) {
    for (const std::string& name : rules.class_names) {
      COMPACT_CHECK(numbers_.emplace(name, numbers_.size()).second, "the class `", printable(name),
                    "` is given twice");
    }
  }

  // The number of a class, or the value; NaN: the row is unlabelled among those of given classes.
  float number_of(const TableCell& cell, const TextTable& table) {
    const std::string text(trim(cell.text));
    const auto wrong = [&](const auto& rule) {
      throw OddOne(
          cat(table.where(), ": the label must be ", rule, ", is `", printable(text), "`"));
    };
    if (rules_.regression) {
      const auto value = parse_number(text);
      if (!value || !std::isfinite(static_cast<float>(*value))) wrong("a finite number");
      return static_cast<float>(*value);
    }
    if (text.empty()) wrong("a class");
    const std::optional<int64_t> whole =
        whole_number(text, cell.kind == TableCell::kNumber || !table.typed());
    if (cell.kind == TableCell::kNumber && !whole) wrong("a text or an integer");
    auto found = numbers_.find(text);
    if (found == numbers_.end() && whole && !rules_.class_names.empty()) {
      found = numbers_.find(std::to_string(*whole));
    }
    if (found != numbers_.end()) return static_cast<float>(found->second);
    if (!rules_.class_names.empty()) {
      if (whole == kUnlabelled && !rules_.numbered) return kNone;
      const auto count = static_cast<int64_t>(rules_.class_names.size());
      const auto value = rules_.numbered ? whole : std::nullopt;
      if (value && *value >= 0 && *value < count) return static_cast<float>(*value);
      fail(table.where(), ": the label must be one of ", count, " classes (",
           printable(suggestion(text, rules_.class_names).substr(2)), "), is `", printable(text),
           "`");
    }
    COMPACT_CHECK(numbers_.size() < kMostClasses, table.where(), ": there may be at most ",
                  kMostClasses, " classes; values need regression");
    wholes_.push_back(whole);
    return static_cast<float>(numbers_.emplace(text, numbers_.size()).first->second);
  }

  // Names in their order. Classes that the file brought get the numbers of that order. A -1 beside
  // three or more that are numbers from 0 on is no class: its rows get NaN.
  std::vector<std::string> finish(std::vector<float>& labels, const TextTable& table) const {
    if (rules_.regression) return {};
    if (!rules_.class_names.empty() || !rules_.label) return rules_.class_names;
    std::vector<std::string> names;
    std::vector<float> places(wholes_.size());
    const auto add = [&](const std::string& name) {
      names.push_back(name);
      return static_cast<float>(names.size() - 1);
    };
    if (std::ranges::all_of(wholes_, [](const auto& whole) { return whole.has_value(); })) {
      std::map<int64_t, float> classes;  // 3 and 3.0 are one
      for (const auto& whole : wholes_) classes.emplace(*whole, kNone);
      const bool unlabelled = classes.size() > 3 && classes.begin()->first == kUnlabelled;
      for (auto& [value, place] : classes) {
        if (value != kUnlabelled || !unlabelled) place = add(std::to_string(value));
      }
      for (size_t i = 0; i < places.size(); ++i) places[i] = classes.at(*wholes_[i]);
    } else {
      for (const auto& [name, number] : numbers_) places[number] = add(name);
    }
    COMPACT_CHECK(names.size() > 1, table.path(),
                  ": labels must be of at least two classes, all are `", printable(names[0]), "`");
    for (float& label : labels) label = places[static_cast<size_t>(label)];
    return names;
  }

  // Whether the file has -1, which may mark rows without a label, as well as 0.
  bool minus_one() const {
    const auto has = [&](int64_t value) {
      return std::ranges::find(wholes_, value) != wholes_.end();
    };
    return has(kUnlabelled) && has(0);
  }

 private:
  const RowRules& rules_;
  std::map<std::string, size_t> numbers_;
  std::vector<std::optional<int64_t>> wholes_;  // what the file's classes are as numbers
};

}  // namespace

LabelledTexts read_rows(TextTable& table, const RowRules& rules) {
  LabelledTexts out;
  Labels labels(rules);
  size_t bytes = 0, skipped = 0;
  std::vector<TableCell> cells;
  OddOnes odd(rules.strict, table.path(), "rows");
  bool more = true;
  while (more) {
    if (!odd.read([&] { more = table.next(cells); }) || !more) continue;
    TableCell* const label = rules.label ? &cells.back() : nullptr;
    const size_t texts = rules.pair ? 2 : 1;
    bool whole = !(label && label->kind == TableCell::kMissing);
    for (size_t i = 0; i < texts; ++i) whole = whole && cells[i].kind != TableCell::kMissing;
    if (rules.skip_broken && label && !rules.regression) whole = whole && !label->text.empty();
    if (!whole) {
      if (!rules.skip_broken) {
        odd.add(cat(table.where(), " must have ", texts == 2 ? "two texts" : "a text",
                    label ? " and a label" : ""));
      } else {
        ++skipped;
      }
      continue;
    }
    float number = kNone;
    if (label && !odd.read([&] { number = labels.number_of(*label, table); })) continue;
    for (size_t i = 0; i < texts; ++i) bytes += cells[i].text.size();
    bytes += kRowBytes;
    COMPACT_CHECK(bytes <= kMostTextBytes, table.path(), ": must hold at most ",
                  format_bytes(kMostTextBytes), " of texts, line by line it holds more");
    out.labels.push_back(number);
    out.first.push_back(std::move(cells[0].text));
    if (rules.pair) out.second.push_back(std::move(cells[1].text));
  }
  if (std::string line = odd.finish(static_cast<int64_t>(out.labels.size())); !line.empty()) {
    out.warnings.push_back(std::move(line));
  }
  if (!out.labels.empty()) out.class_names = labels.finish(out.labels, table);
  size_t kept = 0;
  for (size_t i = 0; i < out.labels.size(); ++i) {
    if (rules.label && std::isnan(out.labels[i])) continue;
    std::swap(out.labels[kept], out.labels[i]);
    std::swap(out.first[kept], out.first[i]);
    if (rules.pair) std::swap(out.second[kept], out.second[i]);
    ++kept;
  }
  const size_t unlabelled = out.labels.size() - kept;
  out.labels.resize(kept);
  out.first.resize(kept);
  out.second.resize(rules.pair ? kept : 0);
  COMPACT_CHECK(kept > 0, table.path(), ": has no whole row");
  if (unlabelled > 0) {
    out.warnings.push_back(cat(table.path(), ": ", format_count(static_cast<int64_t>(unlabelled)),
                               unlabelled == 1 ? " row was" : " rows were",
                               " left out as unlabelled, with -1 for a class; a class of its own "
                               "needs another name"));
  } else if (labels.minus_one()) {
    out.warnings.push_back(
        cat(table.path(), ": -1 is taken for a class of its own: it marks rows ",
            "without a label only beside three classes or more that are numbers ",
            "from 0 on; where it does so here, remove these rows"));
  }
  if (skipped > 0) {
    out.warnings.push_back(cat(table.path(), ": ", skipped,
                               skipped == 1 ? " row was" : " rows were",
                               " skipped: a text or the label was missing"));
  }
  if (table.replaced().count > 0) out.warnings.push_back(table.replaced().line());
  return out;
}

LabelledTexts read_labelled_texts(const std::string& path, const TextFields& fields) {
  const auto table = open_table(path, {.strict = fields.strict});
  std::string first = fields.first, second = fields.second;
  for (const char* name : {"sentence1", "sentence", "text"}) {
    if (first.empty() && table->has(name)) first = name;
  }
  COMPACT_CHECK(!first.empty(), path, ": has none of the fields sentence1, sentence and text; name",
                " the one that holds the texts");
  if (second.empty() && fields.first.empty()) {
    if (table->has("sentence2")) {
      second = "sentence2";
    } else {
      table->refuse("sentence2");
    }
  }
  COMPACT_CHECK(first != second, path, ": the texts of a pair are in two fields, not both in `",
                printable(first), "`");
  if (fields.pair) {
    COMPACT_CHECK(!*fields.pair || !second.empty(), path,
                  ": must have pairs of texts as the training file has, has no sentence2");
    COMPACT_CHECK(*fields.pair || second.empty(), path,
                  ": must have single texts as the training file has, has pairs (", second, ")");
  }
  RowRules rules{.pair = !second.empty(),
                 .label = fields.need_labels || table->has(fields.label),
                 .regression = fields.regression,
                 .class_names = fields.class_names,
                 .strict = fields.strict};
  std::vector<std::string> columns = {first};
  if (rules.pair) columns.push_back(second);
  if (rules.label) columns.push_back(fields.label);
  table->choose(columns);
  return read_rows(*table, rules);
}

}  // namespace compact
