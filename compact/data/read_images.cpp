// SPDX-License-Identifier: Apache-2.0
#include "compact/data/read_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "compact/base/check.h"
#include "compact/data/byte_source.h"
#include "compact/data/image_archive.h"

namespace compact {
namespace {

constexpr std::string_view kIdxImages = "images-idx3-ubyte", kIdxLabels = "labels-idx1-ubyte";

bool is_idx(std::string_view path) { return without_compression(path).ends_with(kIdxImages); }
bool is_records(std::string_view path) { return without_compression(path).ends_with(".bin"); }
bool is_archive(std::string_view path) {
  for (const std::string_view ending :
       {".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".txz", ".zip"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

// The labels beside `path`, first with the same compression.
std::string labels_beside(const std::string& path) {
  const std::string_view name = without_compression(path);
  const std::string_view own = std::string_view(path).substr(name.size());
  const std::string labels =
      std::string(name.substr(0, name.size() - kIdxImages.size())).append(kIdxLabels);
  for (const std::string_view ending : {own, std::string_view(), std::string_view(".gz"),
                                        std::string_view(".xz"), std::string_view(".zst")}) {
    std::error_code ignored;
    const std::string candidate = labels + std::string(ending);
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  }
  fail(path, ": its labels must be beside it as ", labels, "[.gz|.xz|.zst], there are none");
}

LabelledImages read_one(const std::string& path) {
  if (is_idx(path)) return read_idx(path, labels_beside(path));
  if (is_records(path)) return read_cifar10(std::span(&path, 1));
  if (is_archive(path)) return read_image_archive(path);
  fail(path,
       ": no name of images; read are NAME-images-idx3-ubyte[.gz] with its labels beside it, "
       "records of CIFAR-10 (.bin, .bin.gz) and archives of class folders with JPEG files (.tar, "
       ".tar.gz, .tgz, .tar.xz, .zip)");
}

}  // namespace

LabelledImages read_images(std::span<const std::string> paths) {
  COMPACT_CHECK(!paths.empty(), "[images] at least one file is needed");
  if (std::all_of(paths.begin(), paths.end(), is_records)) return read_cifar10(paths);
  LabelledImages first = read_one(paths[0]);
  if (paths.size() == 1) return first;
  std::vector<at::Tensor> images{first.images}, labels{first.labels};
  for (const std::string& path : paths.subspan(1)) {
    const LabelledImages more = read_one(path);
    COMPACT_CHECK(more.images.sizes().slice(1) == first.images.sizes().slice(1), path,
                  ": images have [channels, height, width] ", more.images.sizes().slice(1),
                  ", those of ", paths[0], " ", first.images.sizes().slice(1));
    COMPACT_CHECK(more.classes == first.classes && more.class_names == first.class_names, path,
                  ": its ", more.classes, " classes are not the ", first.classes, " of ", paths[0]);
    images.push_back(more.images);
    labels.push_back(more.labels);
  }
  first.images = at::cat(images);
  first.labels = at::cat(labels);
  return first;
}

}  // namespace compact
