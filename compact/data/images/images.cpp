// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/byte_source.h"

namespace compact {
namespace {

constexpr int64_t kMostRecords = int64_t{1} << 20;
constexpr int64_t kCifarPixels = 3 * 32 * 32;

// Fills `size` bytes, or as many as there are left.
size_t read_fully(ByteSource& source, char* out, size_t size) {
  size_t done = 0;
  while (done < size) {
    const size_t got = source.read(out + done, size - done);
    if (got == 0) break;
    done += got;
  }
  return done;
}

at::Tensor bytes_tensor(const std::vector<char>& bytes, at::IntArrayRef sizes) {
  at::Tensor t = at::empty(sizes, at::kByte);
  COMPACT_CHECK(t.numel() == static_cast<int64_t>(bytes.size()), "[images] sizes do not fit");
  if (!bytes.empty()) std::memcpy(t.data_ptr(), bytes.data(), bytes.size());
  return t;
}

// An idx file of bytes: its sizes, and what follows them.
struct Idx {
  std::vector<int64_t> sizes;
  std::vector<char> bytes;
};
Idx read_idx_file(const std::string& path, uint32_t dimensions) {
  const auto source = open_source(path);
  const auto number = [&] {
    std::array<unsigned char, 4> b{};
    COMPACT_CHECK(read_fully(*source, reinterpret_cast<char*>(b.data()), 4) == 4, path,
                  ": an idx file begins with ", 4 + 4 * dimensions, " bytes; this ends before");
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
  };
  const uint32_t magic = number(), wanted = 0x800 + dimensions;
  COMPACT_CHECK(magic == wanted, path, ": an idx file of bytes in ", dimensions,
                " dimensions begins with the number ", wanted, ", this with ", magic);
  Idx idx;
  int64_t count = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    idx.sizes.push_back(number());
    const int64_t most = d == 0 ? kMostRecords : 4096;
    COMPACT_CHECK(idx.sizes[d] >= 1 && idx.sizes[d] <= most, path, ": size ", d,
                  " must be from 1 to ", most, ", is ", idx.sizes[d]);
    count *= idx.sizes[d];
  }
  COMPACT_CHECK(count <= int64_t{1} << 33, path, ": ", format_bytes(count), " of pixels");
  // In steps, so that a size that lies does not take memory that the file does not fill.
  constexpr int64_t kStep = int64_t{1} << 24;
  while (static_cast<int64_t>(idx.bytes.size()) < count) {
    const size_t before = idx.bytes.size();
    const size_t step = static_cast<size_t>(std::min(kStep, count - static_cast<int64_t>(before)));
    idx.bytes.resize(before + step);
    const size_t got = read_fully(*source, idx.bytes.data() + before, step);
    COMPACT_CHECK(got == step, path, ": ", count, " bytes must follow the sizes, there are ",
                  before + got);
  }
  char more = 0;
  COMPACT_CHECK(source->read(&more, 1) == 0, path, ": ", count,
                " bytes must follow the sizes, there are more");
  return idx;
}

void check_labels(const at::Tensor& labels, int64_t classes, const std::string& path) {
  const at::Tensor wrong = labels.ge(classes).nonzero();
  COMPACT_CHECK(wrong.numel() == 0, path, ": labels must be below ", classes, ", that of image ",
                wrong[0][0].item<int64_t>(), " is ",
                labels[wrong[0][0].item<int64_t>()].item<int64_t>());
}

}  // namespace

LabelledImages read_cifar10(std::span<const std::string> paths) {
  COMPACT_CHECK(!paths.empty(), "[cifar10] at least one file is needed");
  std::vector<char> pixels;
  std::vector<int64_t> labels;
  for (const std::string& path : paths) {
    const auto source = open_source(path);
    std::array<char, 1 + kCifarPixels> record{};
    int64_t number = 0;
    while (const size_t got = read_fully(*source, record.data(), record.size())) {
      COMPACT_CHECK(got == record.size(), path, ": records of CIFAR-10 have ", record.size(),
                    " bytes, number ", number, " has ", got);
      const auto label = static_cast<unsigned char>(record[0]);
      COMPACT_CHECK(label < 10, path, ": labels must be below 10, that of image ", number, " is ",
                    int{label});
      COMPACT_CHECK(static_cast<int64_t>(labels.size()) < kMostRecords, path, ": more than ",
                    kMostRecords, " images");
      labels.push_back(label);
      pixels.insert(pixels.end(), record.begin() + 1, record.end());
      ++number;
    }
    COMPACT_CHECK(number > 0, path, ": no images");
  }
  const auto count = static_cast<int64_t>(labels.size());
  return {bytes_tensor(pixels, {count, 3, 32, 32}), at::tensor(labels, at::kLong), 10};
}

LabelledImages read_idx(const std::string& images, const std::string& labels, int64_t classes) {
  const Idx pixels = read_idx_file(images, 3), names = read_idx_file(labels, 1);
  COMPACT_CHECK(pixels.sizes[0] == names.sizes[0], images, " has ", pixels.sizes[0], " images, ",
                labels, " ", names.sizes[0], " labels");
  LabelledImages result{
      bytes_tensor(pixels.bytes, {pixels.sizes[0], 1, pixels.sizes[1], pixels.sizes[2]}),
      bytes_tensor(names.bytes, {names.sizes[0]}).to(at::kLong), classes};
  check_labels(result.labels, classes, labels);
  return result;
}

LabelledImages with_classes(LabelledImages data, const std::vector<std::string>& names) {
  if (names.empty() || data.class_names.empty() || names == data.class_names) return data;
  std::vector<int64_t> numbers;
  for (const std::string& name : data.class_names) {
    const auto found = std::ranges::find(names, name);
    COMPACT_CHECK(found != names.end(), "[images] no class `", name, "`", suggestion(name, names));
    numbers.push_back(found - names.begin());
  }
  data.labels = at::tensor(numbers).index_select(0, data.labels);
  data.class_names = names;
  data.classes = static_cast<int64_t>(names.size());
  return data;
}

}  // namespace compact
