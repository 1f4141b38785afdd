// SPDX-License-Identifier: Apache-2.0
#include "compact/config/memory_limit.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "compact/base/text.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

// The number of a line "KEY[:] NUMBER ..." of a file.
std::optional<int64_t> field(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t number = 0;
    if (words >> name >> number && (name == key || name == key + ":")) return number;
  }
  return std::nullopt;
}

// The number that is a whole file, or nullopt: "max".
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// Bytes that a control group may still take.
std::optional<int64_t> left_in(const fs::path& group, bool second_version) {
  const auto most = number_in(group / (second_version ? "memory.max" : "memory.limit_in_bytes"));
  if (!most) return std::nullopt;
  const auto used =
      number_in(group / (second_version ? "memory.current" : "memory.usage_in_bytes"));
  const auto cache =
      field(group / "memory.stat", second_version ? "inactive_file" : "total_inactive_file");
  return *most - std::max<int64_t>(0, used.value_or(0) - cache.value_or(0));
}

// Calls f(folder, second version) on the groups of this process, ancestors included.
template <class F>
void for_groups(F f) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() < 3) continue;
    const bool second = parts[0] == "0" && parts[1].empty();
    if (!second && parts[1] != "memory") continue;
    const fs::path root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path path = fs::path(parts[2]).relative_path();; path = path.parent_path()) {
      f(root / path, second);
      if (path.empty()) break;
    }
  }
}

std::optional<int64_t> own_bytes(const char* key) {
  const auto kib = field("/proc/self/status", key);
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

}  // namespace

MemoryLimit memory_limit(int64_t budget, int64_t processes) {
  MemoryLimit limit{std::numeric_limits<int64_t>::max(), "none"};
  const auto consider = [&](int64_t bytes, const char* source) {
    if (bytes < limit.bytes) limit = {std::max<int64_t>(bytes, 0), source};
  };
  const auto with_margin = [&](int64_t left) {
    const int64_t own = left / std::max<int64_t>(processes, 1);
    return own - std::max<int64_t>(int64_t{256} << 20, own / 20);
  };
  if (const auto kib = field("/proc/meminfo", "MemAvailable")) {
    consider(with_margin(*kib * 1024), "the machine's available memory");
  }
  for_groups([&](const fs::path& group, bool second) {
    if (const auto left = left_in(group, second)) {
      consider(with_margin(*left), "the control group's limit");
    }
  });
  if (budget > 0) consider(budget, "--budget");
  return limit;
}

std::optional<int64_t> resident_peak() { return own_bytes("VmHWM"); }

void bound_primitive_caches() {
  for (const char* name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    ::setenv(name, "16", /*replace=*/0);
  }
}

}  // namespace compact
