// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files tensor by tensor: files are larger than the memory that one
// wants to spend on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/atomic_file.h"
#include "compact/base/file.h"
#include "compact/base/function_ref.h"
#include "compact/io/safetensors_header.h"

namespace compact {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// May a value change its floating type on the way into a tensor?
enum class Cast { kRefuse, kAllow };

// A safetensors file opened and checked. Tensors read own their memory.
class SafetensorsFile {
 public:
  // Throws InputError naming the file and the rule; see parse_safetensors_header().
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorEntry>& entries() const { return header_.entries; }
  const Metadata& metadata() const { return header_.metadata; }
  bool contains(std::string_view name) const { return index_.count(name) != 0; }
  // Throws InputError where there is a checksum of the tensors (kChecksumKey) and they have
  // another: reads every byte. Files of other programs have none.
  void verify() const;
  // InputError, with a suggestion, where there is no such tensor.
  const TensorEntry& entry(std::string_view name) const;

  // A new CPU tensor. Bytes of BOOL tensors must be 0 or 1.
  at::Tensor read(std::string_view name) const;
  // Into an existing tensor of the same shape, on any device, strided as it likes. Another dtype
  // is an error under kRefuse and converted under kAllow. Takes no memory of tensors on a CPU.
  void read_into(std::string_view name, at::Tensor& to, Cast cast = Cast::kRefuse) const;
  // Whether the file has these values, as a tensor of their type would.
  bool holds(std::string_view name, const at::Tensor& values) const;

 private:
  void read_bytes(const TensorEntry& entry, int64_t at, int64_t bytes, void* to) const;
  // Calls f(a part of the tensor, the same part of `like`) on about 1 MiB after the other, until it
  // returns false.
  void in_parts(const TensorEntry& entry, const at::Tensor& like,
                FunctionRef<bool(const at::Tensor& part, const at::Tensor& of_like)> f) const;
  void check_like(const TensorEntry& entry, const at::Tensor& to, Cast cast) const;

  InputFile file_;
  int64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::map<std::string_view, const TensorEntry*> index_;
};

// In the metadata of a file: the XXH3 of all tensors' names, types, shapes and bytes, whatever
// their order. A writer that is given this key fills in its value.
inline constexpr const char* kChecksumKey = "compact.xxh3";

// Writes a file whose tensors are announced first (name, dtype, shape; offsets are set here) and
// then added one by one in the order announced, so that only one of them need exist at a time.
// Nothing is at `path` before commit().
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                    const Metadata& metadata = {});
  // Any device, any strides; InputError where it is not what was announced next.
  void add(std::string_view name, const at::Tensor& tensor);
  void commit();

 private:
  AtomicFileWriter file_;
  std::vector<TensorEntry> entries_;
  int64_t data_begin_ = 0;
  size_t next_ = 0;
  int64_t checksum_at_ = -1;        // its place in the file; -1: none is written
  std::vector<std::string> lines_;  // of the tensors added, what it is made of
};

// transformers refuses weights without {"format": "pt"}.
inline const Metadata kTorchFormat = {{"format", "pt"}};
// Metadata of a model's weights.
inline const Metadata kModelMetadata = {{"format", "pt"}, {kChecksumKey, ""}};

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = kTorchFormat);

}  // namespace compact
