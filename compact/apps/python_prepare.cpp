// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/python_prepare.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/apps/process.h"
#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/json/json.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

// A folder that goes when this does.
class OwnFolder {
 public:
  OwnFolder() : path_((fs::temp_directory_path() / temporary_name()).string()) {
    if (::mkdir(path_.c_str(), 0700) != 0) fail_with_errno(path_, "cannot be made");
  }
  ~OwnFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace

std::vector<std::string> prepare_command(const std::string& why) {
  std::error_code error;
  const fs::path root = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  const fs::path folder = root / "python/compact/prepare";
  const bool here = is_file(folder / "__main__.py");
  std::vector<std::vector<std::string>> pythons;
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* const active = std::getenv(name)) {
      pythons.push_back({(fs::path(active) / "bin/python").string()});
    }
  }
  pythons.push_back({(root / ".venv/bin/python").string()});
  pythons.push_back({"/usr/bin/env", "python3"});
  const std::string needs =
      cat("import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('datasets', "
          "'transformers'",
          here ? "" : ", 'compact'", "))))");
  for (std::vector<std::string>& python : pythons) {
    if (!is_file(python[0])) continue;
    std::vector<std::string> probe = python;
    probe.insert(probe.end(), {"-c", needs});
    if (run_process(probe, {}, true).exit_code != 0) continue;
    if (here) {
      python.push_back(folder.string());
    } else {
      python.insert(python.end(), {"-m", "compact.prepare"});
    }
    return python;
  }
  fail(why, ": that is for `python -m compact.prepare`, and no Python here has its packages: `",
       (root / ".venv/bin/pip").string(),
       " install datasets transformers`, or activate an environment that has them");
}

std::vector<uint32_t> chat_prompt(const std::string& chat, const std::string& folder) {
  const OwnFolder between;
  const std::string turns = between / "turns", ids = between / "ids";
  write_file_atomically(turns, chat);
  std::vector<std::string> command = prepare_command("--chat");
  command.insert(command.end(), {"--turns", turns, "--tokenizer", folder, "--output", ids});
  const ProcessResult done = run_process(command, {}, true);
  COMPACT_CHECK(
      done.exit_code == 0 && is_file(ids), "--chat: ",
      done.errors.empty() ? cat("python ended with ", done.exit_code) : done.errors.back());
  return read_json(ids).get<std::vector<uint32_t>>();
}

}  // namespace compact
