// SPDX-License-Identifier: Apache-2.0
#include "compact/train/visualize.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/png.h"
#include "compact/train/picture.h"
#include "compact/train/report_chart.h"
#include "compact/train/report_page.h"
#include "compact/train/trained_model.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kColumns = 8, kLeastSide = 48;
constexpr const char* kFilters = "filters";

// What is drawn of a model, in the order of the page.
using Pictures = std::vector<std::pair<std::string, at::Tensor>>;

// [out, in, height, width]: filters that read colours in colour, others by their mean.
at::Tensor filters_of(const Network& network, int64_t most) {
  for (const auto& [name, t] : network.named_tensors()) {
    if (t.dim() != 4) continue;
    const at::Tensor some = t.slice(0, 0, most);
    return t.size(1) == 3 ? some : some.mean(1, true);
  }
  return {};
}

Pictures pictures_of(const TrainedModel& model, const VisualizeOptions& o) {
  const Dataset& data = *model.task.validation;
  COMPACT_CHECK(o.image >= 0 && o.image < data.size(), "--image must be in [0, ", data.size(),
                "), is ", o.image);
  const StepInputs image = inputs_of(data.in_order(o.image, 1), model.network->device());
  // What every segment gives to the next, above 0.
  Pictures maps;
  const Segment* before = nullptr;
  model.network->each_segment(image.inputs, [&](const Segment& s, const at::Tensor& x) {
    if (before && x.dim() == 4) maps.emplace_back(before->name(), x.relu());
    before = &s;
  });
  COMPACT_CHECK(!maps.empty(), "a model of task ", model.task.config.at("model_type").dump(),
                " has no feature maps");
  std::vector<std::string> names;
  for (const auto& [name, t] : maps) names.push_back(name);
  Pictures all = {{"image", image.inputs[0]}, {kFilters, filters_of(*model.network, o.channels)}};
  const std::vector<std::string>& patterns = o.layers.empty() ? names : o.layers;
  for (const std::string& pattern : patterns) {
    COMPACT_CHECK(std::ranges::any_of(names, [&](auto& n) { return glob_match(pattern, n); }),
                  "--layers: no layer `", pattern, "`", suggestion(pattern, names));
  }
  for (const auto& [name, t] : maps) {
    const auto here = [&](const std::string& pattern) { return glob_match(pattern, name); };
    if (std::ranges::any_of(patterns, here)) {
      all.emplace_back(name, t[0].slice(0, 0, o.channels).unsqueeze(1));
    }
  }
  return all;
}

// The last part of each folder's name, told apart by numbers where they are the same.
std::vector<std::string> labels_of(const std::vector<std::string>& folders) {
  std::vector<std::string> labels;
  std::map<std::string, int> seen;
  for (const std::string& folder : folders) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    const int count = ++seen[name];
    labels.push_back(count > 1 ? cat(name, "-", count) : name);
  }
  return labels;
}

}  // namespace

void visualize(const VisualizeOptions& o, std::ostream& out) {
  COMPACT_CHECK(!o.folders.empty(), "--model_name_or_path is needed");
  COMPACT_CHECK(o.channels >= 1, "--max_channels must be at least 1, is ", o.channels);
  const fs::path folder = o.config.output_dir;
  COMPACT_CHECK(!folder.empty(), "--output_dir is needed");
  const std::vector<std::string> labels = labels_of(o.folders);
  std::vector<std::string> rows;  // in the order first seen
  std::map<std::pair<std::string, std::string>, std::string> cells;
  for (size_t m = 0; m < labels.size(); ++m) {
    TrainConfig c = o.config;
    c.model_name_or_path = o.folders[m];
    const Pictures pictures = pictures_of(open_trained_model(c), o);
    fs::create_directories(folder);
    for (const auto& [name, t] : pictures) {
      const std::string file = cat(labels[m], "-", name, ".png");
      const at::Tensor picture = tiled(stretched(t), kColumns, kLeastSide);
      write_png(folder / file, picture);
      out << (folder / file).string() << "\n";
      if (std::ranges::find(rows, name) == rows.end()) rows.push_back(name);
      cells[{name, labels[m]}] =
          cat("<img src=\"", html_escape(file), "\" width=\"", picture.size(1), "\" height=\"",
              picture.size(0), "\" alt=\"", html_escape(cat(name, " of ", labels[m])), "\">");
    }
  }
  std::string body = "<div class=\"scroll\"><table>\n<thead><tr><th></th>";
  for (const std::string& label : labels) body += cat("<th>", html_escape(label), "</th>");
  body += "</tr></thead>\n<tbody>\n";
  for (const std::string& row : rows) {
    body += cat("<tr><td><b>", html_escape(row), "</b></td>");
    for (const std::string& label : labels) body += cat("<td>", cells[{row, label}], "</td>");
    body += "</tr>\n";
  }
  body += "</tbody></table></div>\n";
  write_file_atomically(
      folder / "index.html",
      html_page("Filters and feature maps",
                cat("image ", o.image, " of ", o.config.validation_file.at(0),
                    "; every picture from its least value, black, to its greatest"),
                body));
  out << (folder / "index.html").string() << "\n";
}

}  // namespace compact
