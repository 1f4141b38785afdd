// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/cli/list.h"
#include "compact/codecs/projection.h"
#include "compact/config/exit_codes.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/models/families.h"
#include "compact/ops/policy/policy.h"
#include "compact/optim/optimizers.h"
#include "compact/optim/schedules.h"
#include "compact/plan/gpu_card.h"
#include "compact/tasks/task.h"

namespace compact::cli {
namespace {

using Rows = ListKind::Rows;

// A table whose rows have a name and a summary.
template <auto kTable>
Rows rows_of() {
  Rows rows;
  for (const auto& row : kTable()) rows.emplace_back(element(row).name, element(row).summary);
  return rows;
}

Rows model_rows() {
  Rows rows;
  for (const FamilyInfo* f : families()) {
    for (const ModelInfo& m : f->models) rows.emplace_back(m.name, m.summary);
  }
  return rows;
}
Rows preset_rows() {
  Rows rows = {{"auto", "With --budget: what takes the least time of all that fits."}};
  for (const EmbeddedPreset& p : embedded_presets()) {
    rows.emplace_back(p.name, Policy::preset(p.name).summary());
  }
  return rows;
}
Rows treatment_rows() {
  Rows rows;
  for (const TreatmentInfo& t : treatments()) {
    const std::string settings = t.settings.empty() ? "" : ":" + t.settings;
    rows.emplace_back(cat(name_of(t.kind), " ", t.name, settings), t.summary);
  }
  for (const CodecInfo* c : codecs()) {
    const std::string settings = c->settings.empty() ? "" : ":" + c->settings;
    rows.emplace_back(cat("slot ", c->name, settings), c->summary);
  }
  return rows;
}
Rows tokenizer_rows() {
  Rows rows;
  for (const TokenizerEntry& t : tokenizers()) rows.emplace_back(t.usage, t.summary);
  return rows;
}
Rows gpu_rows() {
  Rows rows;
  for (const GpuCard& g : gpu_cards()) rows.emplace_back(g.name, g.summary());
  return rows;
}

constexpr ListKind kKinds[] = {
    {"tasks", rows_of<tasks>},         {"models", model_rows},
    {"presets", preset_rows},          {"treatments", treatment_rows},
    {"roles", rows_of<roles>},         {"projections", rows_of<projections>},
    {"tokenizers", tokenizer_rows},    {"optimizers", rows_of<optimizers>},
    {"schedules", rows_of<schedules>}, {"gpus", gpu_rows},
};

void print(const Rows& rows, const char* indent) {
  size_t width = 0;
  for (const auto& [name, summary] : rows)
    width = std::max(width, std::min<size_t>(28, name.size()));
  for (const auto& [name, summary] : rows) {
    std::cout << indent << name;
    if (name.size() > width) {
      std::cout << "\n" << indent << std::string(width, ' ');
    } else {
      std::cout << std::string(width - name.size(), ' ');
    }
    std::cout << "  " << summary << "\n";
  }
}

}  // namespace

std::span<const ListKind> list_kinds() { return kKinds; }

int run_list(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact list", command.summary);
  std::string kind, kinds;
  std::vector<std::string> names;
  for (const ListKind& k : kKinds) {
    names.emplace_back(k.name);
    kinds += (kinds.empty() ? "" : ", ") + names.back();
  }
  const std::string text = "one of " + kinds + "; default: all";
  flags.add_positional("KIND", kind, text.c_str());
  if (!flags.parse(arguments)) return kExitOk;
  COMPACT_CHECK(kind.empty() || std::ranges::find(names, kind) != names.end(),
                "nothing to list as `", kind, "`", suggestion(kind, names));
  for (const ListKind& k : kKinds) {
    if (kind == k.name) {
      print(k.rows(), "");
    } else if (kind.empty()) {
      std::cout << (&k == kKinds ? "" : "\n") << k.name << "\n";
      print(k.rows(), "  ");
    }
  }
  return kExitOk;
}

}  // namespace compact::cli
