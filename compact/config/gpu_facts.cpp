// SPDX-License-Identifier: Apache-2.0
#include "compact/config/gpu_facts.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/kernels/kernels.h"

namespace compact {
namespace {

// The version in the text of /proc/driver/nvidia/version:
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ..."
std::string driver_version() {
  std::ifstream in("/proc/driver/nvidia/version");
  for (std::string word; in >> word;) {
    const size_t dot = word.find('.');
    if (dot != word.npos && parse_integer(word.substr(0, dot))) return word;
  }
  if (std::filesystem::exists("/dev/nvidia0")) return "of unknown version";
  return {};
}

// "13.0" of the runtime's number 13000.
std::string cuda_version(long number) { return cat(number / 1000, ".", number % 1000 / 10); }

std::string find_nvcc() {
  std::vector<std::string> files;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  files.push_back(variable("CUDACXX"));
  for (const char* home : {"CUDA_HOME", "CUDAToolkit_ROOT"}) {
    if (!variable(home).empty()) files.push_back(variable(home) + "/bin/nvcc");
  }
  files.push_back("/usr/local/cuda/bin/nvcc");
  for (const std::string& folder : split(variable("PATH"), ':')) files.push_back(folder + "/nvcc");
  std::error_code ignored;
  for (const std::string& file : files) {
    if (std::filesystem::is_regular_file(file, ignored)) return file;
  }
  return {};
}

// The first obstacle to using a GPU, and what to do about it; empty where there is none.
std::string first_obstacle(const GpuFacts& f) {
  if (f.driver.empty() && f.devices == 0) return "no NVIDIA driver is loaded";
  if (f.torch_cuda.empty()) {
    return "this torch is for the CPU; install one for CUDA (TORCH_SPEC, pip's index or TORCH_DIR) "
           "and run scripts/train.sh";
  }
  if (f.devices == 0) {
    return cat("torch for CUDA ", f.torch_cuda, " sees no GPU under driver ", f.driver,
               "; a newer driver, an older torch, or CUDA_VISIBLE_DEVICES may be what is needed");
  }
  if (!f.kernels) {
    return "this program has no kernels for it; run scripts/train.sh, or cmake --preset cuda";
  }
  return {};
}

}  // namespace

bool has_cuda_kernels() {
  return std::ranges::any_of(kernels::backends(), [](const kernels::Backend* b) {
    return b->device == kernels::Device::kCuda;
  });
}

GpuFacts gpu_facts() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  GpuFacts f;
  f.driver = driver_version();
  if (hooks.isBuilt()) f.torch_cuda = cuda_version(hooks.versionCUDART());
  f.devices = hooks.hasCUDA() ? static_cast<int>(hooks.deviceCount()) : 0;
  f.kernels = has_cuda_kernels();
  f.nvcc = find_nvcc();
  return f;
}

std::vector<std::pair<std::string, std::string>> describe_gpu(const GpuFacts& f) {
  const std::string obstacle = first_obstacle(f);
  const std::string without = f.kernels ? "not needed: the kernels are built in"
                                        : "scripts/train.sh takes it from pip where it is needed";
  return {
      {"gpu driver", f.driver.empty() ? "none" : f.driver},
      {"gpu", f.devices == 0 ? "none that torch sees" : cat(f.devices, " (cuda:0 is used)")},
      {"torch's cuda", f.torch_cuda.empty() ? "none: a build for the CPU" : f.torch_cuda},
      {"cuda kernels", f.kernels ? "built in" : "not built in"},
      {"nvcc", f.nvcc.empty() ? cat("none found (", without, ")") : f.nvcc},
      {"training on", obstacle.empty() ? "the GPU" : cat("the CPU: ", obstacle)},
  };
}

}  // namespace compact
