// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/visualize.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <utility>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/io/png.h"
#include "compact/report/picture.h"
#include "compact/report/report_page.h"
#include "compact/tasks/trained_model.h"
#include "compact/train/output_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kColumns = 8, kLeastSide = 48;
constexpr int64_t kOfNoLayer = 2;  // the image and the filters come first

// The pictures of a model, by name, in the order of the page.
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
  Pictures all = {{"image", image.inputs[0]}, {"filters", filters_of(*model.network, o.channels)}};
  // The output of every segment, read as the next one's input, with negative values set to 0.
  const Segment* before = nullptr;
  const at::NoGradGuard no_grad;
  const auto see = [&](const Segment& s, const at::Tensor& x, Weights, const SegmentPass&) {
    COMPACT_CHECK(!before || x.dim() == 4, model.config.model_name_or_path,
                  ": only convolutional networks have maps to draw; this one makes tokens");
    if (before) all.emplace_back(before->name(), x.relu()[0].slice(0, 0, o.channels).unsqueeze(1));
    before = &s;
  };
  model.network->each_segment(image.inputs, image.target, {.training = false}, see);
  return all;
}

// Keeps the pictures of chosen layers and those that belong to no layer.
void choose_layers(std::vector<Pictures>& models, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  std::vector<std::string> names;
  for (const Pictures& pictures : models) {
    for (size_t i = kOfNoLayer; i < pictures.size(); ++i) names.push_back(pictures[i].first);
  }
  for (const std::string& pattern : patterns) {
    COMPACT_CHECK(std::ranges::any_of(names, [&](auto& n) { return glob_match(pattern, n); }),
                  "--layers: no layer `", pattern, "`", suggestion(pattern, names));
  }
  for (Pictures& pictures : models) {
    const auto others = [&](const auto& picture) {
      const auto here = [&](const std::string& p) { return glob_match(p, picture.first); };
      return std::ranges::none_of(patterns, here);
    };
    pictures.erase(std::remove_if(pictures.begin() + kOfNoLayer, pictures.end(), others),
                   pictures.end());
  }
}

// The last part of each folder's name in characters of links, made distinct by numbers.
std::vector<std::string> labels_of(const std::vector<std::string>& folders) {
  std::vector<std::string> labels;
  for (const std::string& folder : folders) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    for (char& c : name) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
    }
    std::string label = name;
    for (int i = 2; std::ranges::find(labels, label) != labels.end(); ++i)
      label = cat(name, "-", i);
    labels.push_back(label);
  }
  return labels;
}

}  // namespace

void visualize(const VisualizeOptions& o, std::ostream& out, std::vector<std::string>& warnings) {
  check_values(o.config);
  COMPACT_CHECK(!o.folders.empty() && std::ranges::find(o.folders, "") == o.folders.end(),
                "--model_name_or_path DIR... is needed");
  COMPACT_CHECK(o.channels >= 1, "--max_channels must be at least 1, is ", o.channels);
  const fs::path folder = o.config.output_dir;
  COMPACT_CHECK(!folder.empty(), "--output_dir DIR is needed");
  check_output_place(o.config);
  const std::vector<std::string> labels = labels_of(o.folders);
  std::vector<Pictures> models;
  for (const std::string& model : o.folders) {
    TrainConfig c = o.config;
    c.model_name_or_path = model;
    const std::string& task = task_of_folder(model).name;
    COMPACT_CHECK(task == image_classification.name, model, ": a model of task ", task,
                  " has no maps to draw; ", image_classification.name, " is needed");
    const TrainedModel opened = open_trained_model(c);
    warnings.insert(warnings.end(), opened.warnings.begin(), opened.warnings.end());
    models.push_back(pictures_of(opened, o));
  }
  choose_layers(models, o.layers);
  std::error_code error;
  fs::create_directories(folder, error);
  COMPACT_CHECK(!error, folder.string(), ": cannot be made (", error.message(), ")");
  std::vector<std::string> rows;  // in the order of first appearance
  std::map<std::pair<std::string, std::string>, std::string> cells;
  for (size_t m = 0; m < labels.size(); ++m) {
    for (const auto& [name, t] : models[m]) {
      const std::string file = cat(labels[m], "-", name, ".png");
      const at::Tensor picture = tiled(stretched(t), kColumns, kLeastSide);
      write_png(folder / file, picture);
      out << (folder / file).string() << "\n";
      if (std::ranges::find(rows, name) == rows.end()) rows.push_back(name);
      cells[{name, labels[m]}] =
          cat("<img src=\"", file, "\" width=\"", picture.size(1), "\" height=\"", picture.size(0),
              "\" alt=\"", name, " of ", labels[m], "\">");
    }
  }
  std::string body = "<div class=\"scroll\"><table>\n<thead><tr><th></th>";
  for (const std::string& label : labels) body += cat("<th>", label, "</th>");
  body += "</tr></thead>\n<tbody>\n";
  for (const std::string& row : rows) {
    body += cat("<tr><td><b>", row, "</b></td>");
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
