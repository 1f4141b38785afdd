// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/image_archive.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/archive.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/images/jpeg.h"
#include "compact/data/images/png_decoder.h"

namespace compact {
namespace {

constexpr int64_t kMostImages = int64_t{1} << 20;
constexpr int64_t kMostArchiveMembers = 2 * kMostImages;  // with folders and hidden files
constexpr int64_t kMostPixels = int64_t{1} << 33;
constexpr int64_t kMostFileBytes = int64_t{1} << 24;

// "train/cat/0001.jpg": above "train/", folder "cat", file "0001.jpg".
struct ImageName {
  std::string above, folder, file;
};
ImageName parts_of(const std::string& name) {
  ImageName parts;
  const size_t last = name.rfind('/');
  parts.file = name.substr(last == name.npos ? 0 : last + 1);
  if (last == name.npos) return parts;
  const size_t before = last == 0 ? name.npos : name.rfind('/', last - 1);
  const size_t begin = before == name.npos ? 0 : before + 1;
  parts.above = name.substr(0, begin);
  parts.folder = name.substr(begin, last - begin);
  return parts;
}

// Whether operating systems leave such a file in folders.
bool is_litter(const std::string& path, const std::string& file) {
  const std::string name = lower_case(file);
  return name.starts_with('.') || name == "thumbs.db" || name == "ehthumbs.db" ||
         name == "desktop.ini" || path.starts_with("__MACOSX/") ||
         path.find("/__MACOSX/") != path.npos;
}

bool is_image_name(const std::string& file) {
  const std::string name = lower_case(file);
  return name.ends_with(".jpg") || name.ends_with(".jpeg") || name.ends_with(".png");
}

at::Tensor tensor_of(std::vector<uint8_t> pixels, at::IntArrayRef sizes) {
  auto owner = std::make_shared<std::vector<uint8_t>>(std::move(pixels));
  return at::from_blob(
      owner->data(), sizes, [owner](void*) {}, at::TensorOptions(at::kByte));
}

}  // namespace

LabelledImages read_image_archive(const std::string& path, std::optional<ImageSize> size,
                                  const ImageFit& fit, bool strict) {
  ArchiveReader archive(path, kMostArchiveMembers);
  JpegDecoder jpeg;
  OddOnes odd(strict, path, "files");
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;  // numbers of `classes`, given as folders are met
  std::map<std::string, int64_t> classes;
  std::optional<std::string> above;
  const bool any_size = size.has_value();
  int64_t others = 0;  // of another size than the wanted one
  ImageSize first_other;
  while (archive.next()) {
    const ImageName name = parts_of(archive.name());
    if (is_litter(archive.name(), name.file)) continue;
    if (!is_image_name(name.file) || name.folder.empty()) {
      odd.add(archive.where() + ": an archive of images holds CLASS/NAME.jpg or .png only");
      continue;
    }
    if (!above) above = name.above;
    COMPACT_CHECK(name.above == *above, archive.where(),
                  ": class folders must lie in one folder, the first in `", *above, "`");
    COMPACT_CHECK(static_cast<int64_t>(labels.size()) < kMostImages, path, ": more than ",
                  kMostImages, " images");
    const size_t before = pixels.size();
    const auto read_image = [&] {
      const std::string bytes = archive.read(kMostFileBytes);
      std::optional<PngDecoder> png;
      if (is_png(bytes)) png.emplace(bytes, archive.where(), JpegDecoder::kLargestSide);
      const ImageSize sides = png ? png->sides() : jpeg.open(bytes, archive.where());
      const auto decode = [&](uint8_t* to) { png ? png->decode(to) : jpeg.decode(to); };
      const ImageSize wanted = size.value_or(sides);
      COMPACT_CHECK(any_size || sides == wanted, archive.where(),
                    ": images must be of one size, the first is ", str(wanted), ", this ",
                    str(sides), "; --image_size scales them");
      const size_t more = static_cast<size_t>(3 * wanted.height * wanted.width);
      COMPACT_CHECK(before + more <= static_cast<size_t>(kMostPixels), path, ": more than ",
                    kMostPixels, " bytes of pixels");
      pixels.resize(before + more);
      if (!is_changed(sides, wanted, fit)) {
        decode(pixels.data() + before);
      } else {
        const at::Tensor image = at::empty({1, 3, sides.height, sides.width}, at::kByte);
        decode(image.mutable_data_ptr<uint8_t>());
        std::memcpy(pixels.data() + before, resized(image, wanted, fit).const_data_ptr<uint8_t>(),
                    more);
        if (others++ == 0) first_other = sides;
      }
      size = wanted;
    };
    if (!odd.read(read_image)) {
      pixels.resize(before);
      continue;
    }
    labels.push_back(classes.emplace(name.folder, classes.size()).first->second);
  }
  LabelledImages result;
  if (std::string line = odd.finish(static_cast<int64_t>(labels.size())); !line.empty()) {
    result.warnings.push_back(std::move(line));
  }
  COMPACT_CHECK(!labels.empty(), path, ": has no images CLASS/NAME.jpg");

  std::vector<int64_t> rank(classes.size());
  for (const auto& [name, number] : classes) {
    rank[number] = static_cast<int64_t>(result.class_names.size());
    result.class_names.push_back(name);
  }
  for (int64_t& label : labels) label = rank[label];
  result.classes = static_cast<int64_t>(classes.size());
  result.labels = at::tensor(labels, at::kLong);
  result.images = tensor_of(std::move(pixels),
                            {static_cast<int64_t>(labels.size()), 3, size->height, size->width});
  if (others > 0) {
    result.scaled.push_back(resized_text(path, others, first_other, *size));
  }
  return result;
}

}  // namespace compact
