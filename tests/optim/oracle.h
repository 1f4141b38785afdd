// SPDX-License-Identifier: Apache-2.0
// Hands tensors and settings to tests/optim/_oracle.py, which computes the same in NumPy or PyTorch
// and fails where the results differ.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdlib>

#include <filesystem>
#include <fstream>
#include <string>

namespace compact {

// A Python with NumPy and torch: COMPACT_PYTHON, .venv, or the active environment; empty if none.
inline std::string python() {
  const char* chosen = std::getenv("COMPACT_PYTHON");
  const char* active = std::getenv("VIRTUAL_ENV");
  for (const std::string& path :
       {std::string(chosen ? chosen : ""), std::string(COMPACT_SOURCE_DIR "/.venv/bin/python"),
        active ? std::string(active) + "/bin/python" : std::string()}) {
    if (!path.empty() && std::filesystem::exists(path)) return path;
  }
  return {};
}

// A folder of one comparison: NAME.f64 files with their shapes, and settings, in `manifest`.
class OracleCase {
 public:
  explicit OracleCase(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    manifest_.open(folder_ / "manifest");
  }
  void set(const std::string& key, double value) {
    manifest_.precision(17);
    manifest_ << "number " << key << " " << value << "\n";
  }
  void tensor(const std::string& name, const at::Tensor& t) {
    const at::Tensor d = t.detach().to(at::kDouble).contiguous();
    std::ofstream out(folder_ / (name + ".f64"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(d.data_ptr<double>()),
              static_cast<std::streamsize>(d.nbytes()));
    manifest_ << "tensor " << name;
    for (const int64_t size : d.sizes()) manifest_ << " " << size;
    manifest_ << "\n";
  }
  void finish() { manifest_.close(); }

 private:
  std::filesystem::path folder_;
  std::ofstream manifest_;
};

// A fresh folder, removed at the end.
class OracleFolder {
 public:
  OracleFolder()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("compact_oracle_" + std::to_string(::getpid()) + "_" + std::to_string(++count_))) {
    std::filesystem::create_directories(path_);
  }
  ~OracleFolder() { std::filesystem::remove_all(path_); }
  OracleFolder(const OracleFolder&) = delete;
  OracleFolder& operator=(const OracleFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  // Runs the oracle on every case in the folder; its exit status.
  int run(const std::string& mode) const {
    const std::string command = "\"" + python() +
                                "\" \"" COMPACT_SOURCE_DIR "/tests/optim/_oracle.py\" " + mode +
                                " \"" + path_.string() + "\"";
    return std::system(command.c_str());
  }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

}  // namespace compact
