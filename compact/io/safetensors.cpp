// SPDX-License-Identifier: Apache-2.0
#include "compact/io/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

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

// A tensor's line in the text of which the file's checksum is made.
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

// `bytes` of the tensor from its byte `at` on.
void SafetensorsFile::read_bytes(const TensorEntry& entry, int64_t at, int64_t bytes,
                                 void* to) const {
  if (bytes == 0) return;
  char* const data = static_cast<char*>(to);
  file_.read_at(data_begin_ + entry.begin + at, data, bytes);
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
  read_bytes(entry, 0, entry.end - entry.begin, tensor.mutable_data_ptr());
  return tensor;
}

void SafetensorsFile::in_parts(
    const TensorEntry& entry, const at::Tensor& like,
    FunctionRef<bool(const at::Tensor& part, const at::Tensor& of_like)> f) const {
  if (like.numel() == 0) return;
  constexpr int64_t kPart = int64_t{1} << 20;
  const at::Tensor all = like.detach();
  const int64_t rows = all.dim() == 0 ? 1 : all.size(0);
  const int64_t row_bytes = (entry.end - entry.begin) / rows;
  const int64_t most = std::clamp<int64_t>(kPart / row_bytes, 1, rows);
  const auto buffer = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(most * row_bytes));
  std::vector<int64_t> sizes = entry.shape;
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    read_bytes(entry, first * row_bytes, count * row_bytes, buffer.get());
    if (all.dim() > 0) sizes[0] = count;
    const at::Tensor part = at::from_blob(buffer.get(), sizes, entry.dtype);
    if (!f(part, all.dim() == 0 ? all : all.narrow(0, first, count))) return;
  }
}

void SafetensorsFile::check_like(const TensorEntry& entry, const at::Tensor& to, Cast cast) const {
  const bool same_type = to.scalar_type() == entry.dtype;
  const bool convertible = cast == Cast::kAllow && at::isFloatingType(to.scalar_type()) &&
                           at::isFloatingType(entry.dtype);
  COMPACT_CHECK(to.sizes() == at::IntArrayRef(entry.shape) && (same_type || convertible),
                path().string(), ": tensor `", entry.name, "` must be ",
                describe(to.scalar_type(), to.sizes()), ", is ",
                describe(entry.dtype, entry.shape));
}

void SafetensorsFile::read_into(std::string_view name, at::Tensor& to, Cast cast) const {
  const TensorEntry& entry = this->entry(name);
  check_like(entry, to, cast);
  if (to.scalar_type() == entry.dtype && to.is_cpu() && to.is_contiguous()) {
    return read_bytes(entry, 0, entry.end - entry.begin, to.detach().mutable_data_ptr());
  }
  in_parts(entry, to, [](const at::Tensor& part, const at::Tensor& of_to) {
    of_to.copy_(part);
    return true;
  });
}

bool SafetensorsFile::holds(std::string_view name, const at::Tensor& values) const {
  const TensorEntry& entry = this->entry(name);
  check_like(entry, values, Cast::kAllow);
  bool equal = true;
  in_parts(entry, values, [&](const at::Tensor& part, const at::Tensor& of_values) {
    return equal = part.to(of_values.options()).equal(of_values);
  });
  return equal;
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
