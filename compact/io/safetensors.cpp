// SPDX-License-Identifier: Apache-2.0
#include "compact/io/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/checksum.h"

namespace compact {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors bytes are little-endian");

constexpr int64_t kLengthBytes = 8;

std::string describe(at::ScalarType dtype, at::IntArrayRef shape) {
  return cat(c10::toString(dtype), " [", c10::Join(", ", shape), "]");
}

// What a tensor adds to the checksum of its file.
std::string checksum_line(const TensorEntry& entry, const std::string& digest) {
  return cat(entry.name, " ", describe(entry.dtype, entry.shape), " ", digest, "\n");
}

std::string checksum_of(std::vector<std::string> lines) {
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line;
  return xxh3(text);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  COMPACT_CHECK(file_.size() >= kLengthBytes, where,
                ": safetensors must have at least 8 bytes, has ", file_.size());
  uint64_t length = 0;
  file_.read_at(0, &length, kLengthBytes);
  COMPACT_CHECK(length <= static_cast<uint64_t>(kLargestHeader), where,
                ": safetensors header must be at most ", kLargestHeader, " bytes, claims ", length);
  const int64_t header_bytes = static_cast<int64_t>(length);
  COMPACT_CHECK(header_bytes <= file_.size() - kLengthBytes, where, ": safetensors header of ",
                length, " bytes must fit into the file of ", file_.size());
  std::string text(length, '\0');
  file_.read_at(kLengthBytes, text.data(), header_bytes);
  data_begin_ = kLengthBytes + header_bytes;
  header_ = parse_safetensors_header(text, file_.size() - data_begin_, where);
  for (const TensorEntry& entry : header_.entries) index_.emplace(entry.name, &entry);
}

void SafetensorsFile::verify() const {
  const auto expected = metadata().find(kChecksumKey);
  if (expected == metadata().end()) return;
  std::vector<std::string> lines;
  for (const TensorEntry& e : entries()) {
    lines.push_back(checksum_line(e, xxh3(file_, data_begin_ + e.begin, e.end - e.begin)));
  }
  const std::string found = checksum_of(std::move(lines));
  COMPACT_CHECK(found == expected->second, path().string(), ": is damaged: the checksum of its ",
                "tensors must be \"", expected->second, "\", is \"", found, "\"");
}

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return *found->second;
  std::vector<std::string> known;
  for (const TensorEntry& entry : header_.entries) known.push_back(entry.name);
  fail(path().string(), ": has no tensor `", name, "`", suggestion(name, known));
}

void SafetensorsFile::read_bytes(const TensorEntry& entry, at::Tensor& to) const {
  const int64_t bytes = entry.end - entry.begin;
  if (bytes == 0) return;
  char* data = static_cast<char*>(to.mutable_data_ptr());
  file_.read_at(data_begin_ + entry.begin, data, bytes);
  if (entry.dtype == at::kBool) {
    // Any other byte in a bool is undefined behaviour in C++.
    const char* bad = std::find_if(data, data + bytes, [](char c) { return c != 0 && c != 1; });
    if (bad == data + bytes) return;
    const int value = static_cast<unsigned char>(*bad);
    std::memset(data, 0, static_cast<size_t>(bytes));
    fail(path().string(), ": tensor `", entry.name, "`: bytes of BOOL must be 0 or 1, one is ",
         value);
  }
}

at::Tensor SafetensorsFile::read(std::string_view name) const {
  const TensorEntry& entry = this->entry(name);
  at::Tensor tensor = at::empty(entry.shape, entry.dtype);
  read_bytes(entry, tensor);
  return tensor;
}

void SafetensorsFile::read_into(std::string_view name, at::Tensor& to, Cast cast) const {
  const TensorEntry& entry = this->entry(name);
  const bool same_type = to.scalar_type() == entry.dtype;
  const bool convertible = cast == Cast::kAllow && at::isFloatingType(to.scalar_type()) &&
                           at::isFloatingType(entry.dtype);
  COMPACT_CHECK(to.sizes() == at::IntArrayRef(entry.shape) && (same_type || convertible),
                path().string(), ": tensor `", name, "` must be ",
                describe(to.scalar_type(), to.sizes()), ", is ",
                describe(entry.dtype, entry.shape));
  at::Tensor target = to.detach();
  if (same_type && target.is_cpu() && target.is_contiguous()) {
    read_bytes(entry, target);
  } else {
    target.copy_(read(name));
  }
}

NamedTensors read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const TensorEntry& entry : file.entries()) {
    tensors.emplace_back(entry.name, file.read(entry.name));
  }
  return tensors;
}

NamedTensors read_safetensors(const std::filesystem::path& path,
                              std::span<const std::string> names) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const std::string& name : names) tensors.emplace_back(name, file.read(name));
  return tensors;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorEntry> entries, const Metadata& metadata)
    : file_(path), entries_(std::move(entries)) {
  Metadata filled = metadata;
  const auto checksum = filled.find(kChecksumKey);
  if (checksum != filled.end()) checksum->second = xxh3("");  // as long as the one to come
  const std::string header = build_safetensors_header(entries_, filled, path.string());
  if (checksum != filled.end()) {
    const std::string key = cat("\"", kChecksumKey, "\":\"");
    checksum_at_ = static_cast<int64_t>(header.find(key) + key.size());
  }
  file_.write(header);
  data_begin_ = static_cast<int64_t>(header.size());
}

void SafetensorsWriter::add(std::string_view name, const at::Tensor& tensor) {
  const std::string where = cat(file_.path().string(), ": tensor `", name, "`");
  COMPACT_CHECK(next_ < entries_.size(), where, ": is one more than announced");
  const TensorEntry& entry = entries_[next_];
  COMPACT_CHECK(entry.name == name, where, ": must be `", entry.name, "`, announced next");
  COMPACT_CHECK(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta(), where,
                ": must be a dense tensor with data");
  COMPACT_CHECK(
      tensor.scalar_type() == entry.dtype && tensor.sizes() == at::IntArrayRef(entry.shape), where,
      ": announced as ", describe(entry.dtype, entry.shape), ", is ",
      describe(tensor.scalar_type(), tensor.sizes()));
  const at::Tensor plain = tensor.detach().to(at::kCPU).contiguous();
  file_.write_at(data_begin_ + entry.begin, plain.const_data_ptr(),
                 static_cast<size_t>(entry.end - entry.begin));
  if (checksum_at_ >= 0) {
    const char* bytes = static_cast<const char*>(plain.const_data_ptr());
    lines_.push_back(
        checksum_line(entry, xxh3({bytes, static_cast<size_t>(entry.end - entry.begin)})));
  }
  ++next_;
}

void SafetensorsWriter::commit() {
  COMPACT_CHECK(next_ == entries_.size(), file_.path().string(), ": tensor `",
                next_ < entries_.size() ? entries_[next_].name : "", "` announced, but not added");
  if (checksum_at_ >= 0) {
    const std::string checksum = checksum_of(lines_);
    file_.write_at(checksum_at_, checksum.data(), checksum.size());
  }
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    COMPACT_CHECK(tensor.defined(), path.string(), ": tensor `", name, "`: must be defined");
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const auto& [name, tensor] : tensors) writer.add(name, tensor);
  writer.commit();
}

}  // namespace compact
