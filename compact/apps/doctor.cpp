// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/doctor.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <thread>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/launch.h"
#include "compact/config/gpu_facts.h"
#include "compact/config/precision.h"
#include "compact/config/version.h"
#include "compact/kernels/self_check.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/functions/attention.h"

namespace compact {
namespace {

// The content of a file of /proc or /sys; empty where it cannot be read.
std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The value of "key ... : value" on the first line that begins with `key`.
std::string field(std::string_view text, std::string_view key) {
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon != line.npos) return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return {};
}

std::optional<int64_t> memory_field(const std::string& meminfo, const char* key) {
  const std::string value = field(meminfo, key);  // "65840 kB"
  const auto kib = parse_integer(trim(std::string_view(value).substr(0, value.find(' '))));
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

// The tightest memory limit of this process's control groups (version 2, then 1).
std::optional<int64_t> cgroup_limit() {
  std::optional<int64_t> least;
  std::vector<std::string> files = {"/sys/fs/cgroup/memory.max",
                                    "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
  std::string group = field(text_of("/proc/self/cgroup"), "0:");
  for (group = group.substr(std::min(group.size(), group.find('/'))); group.size() > 1;
       group = group.substr(0, group.rfind('/'))) {
    files.push_back("/sys/fs/cgroup" + group + "/memory.max");
  }
  for (const std::string& file : files) {
    const auto limit = parse_integer(trim(text_of(file)));
    const bool none = limit && *limit > (int64_t{1} << 60);  // version 1: no limit
    if (limit && !none && (!least || *limit < *least)) least = limit;
  }
  return least;
}

void fact(std::ostream& out, const char* name, const std::string& value) {
  out << formatted("%-14s", name) << value << "\n";
}

void describe_build(std::ostream& out) {
  fact(out, "compact", version());
  fact(out, "torch", torch_version());
#if defined(__clang__)
  fact(out, "compiler", "clang " __clang_version__);
#else
  fact(out, "compiler", "g++ " __VERSION__);
#endif
  std::string names;
  for (const kernels::Backend* b : kernels::backends())
    names += cat(names.empty() ? "" : ", ", b->name);
  fact(out, "kernels", names);
}

void describe_machine(std::ostream& out) {
  const std::string cpu = text_of("/proc/cpuinfo"), memory = text_of("/proc/meminfo");
  const std::string name = field(cpu, "model name");
  fact(out, "cpu",
       cat(name.empty() ? "unknown" : name, ", ", std::thread::hardware_concurrency(), " cores"));
  std::string sets;
  for (const std::string& s : instruction_sets(cpu)) sets += (sets.empty() ? "" : " ") + s;
  fact(out, "instructions", cat(sets, " (torch uses ", at::get_cpu_capability(), ")"));
  fact(out, "threads", cat(at::get_num_threads()));
  const auto total = memory_field(memory, "MemTotal"), free = memory_field(memory, "MemAvailable");
  if (total && free) {
    fact(out, "memory", cat(format_bytes(*total), ", available ", format_bytes(*free)));
  }
  const auto limit = cgroup_limit();
  fact(out, "memory limit", limit ? cat(format_bytes(*limit), " (control group)") : "none");
  for (const auto& [name, value] : describe_gpu(gpu_facts())) fact(out, name.c_str(), value);
}

void describe_device(std::ostream& out, at::Device device) {
  for (const char* precision : {"highest", "high"}) {
    const MatmulReport r = set_matmul_precision(precision, device);
    std::string text = cat(precision, ": ", r.path);
    if (r.gflops > 0) text += formatted(", %.0f GFLOP/s, relative error %.1e", r.gflops, r.error);
    fact(out, "f32 products", cat(text, " (", device.str(), ")"));
  }
  set_matmul_precision("highest", device);
  if (device.is_cpu()) {
    choose_bf16_products();
    fact(out, "bf16 products",
         formatted("%s, %.0f GFLOP/s (cpu)",
                   bf16_products() == Bf16Products::kConverted ? kConvertedProducts
                   : at::globalContext().hasMKLDNN()           ? "onednn"
                                                               : "default",
                   product_gflops(at::kBFloat16)));
  }
  constexpr int64_t kDim = 64;
  const auto attention = [&](const char* name, auto choose) {
    fact(out, name,
         cat("f32 ", attention_text(choose(at::kFloat), kDim), ", bf16 ",
             attention_text(choose(at::kBFloat16), kDim), " (heads of ", kDim, ")"));
  };
  attention("attention",
            [&](at::ScalarType type) { return choose_attention(device.type(), type, kDim); });
  attention("with padding",
            [&](at::ScalarType type) { return choose_masked_attention(device, type, kDim, 0); });
  attention("with dropout",
            [&](at::ScalarType type) { return choose_masked_attention(device, type, kDim, 0.1); });
}

// Whether all kernels of the backend agree with the reference.
bool check_backend(std::ostream& out, const kernels::Backend& backend, at::Device device) {
  const at::Tensor here = at::empty({1}, device);
  int cases = 0, wrong = 0;
  std::string failures;
  const auto checks = self_check(backend, kernels::memory_for(backend.device), launch_for(here));
  for (const kernels::KernelCheck& c : checks) {
    cases += c.cases;
    if (c.failure.empty()) continue;
    ++wrong;
    failures += cat("  FAILED ", backend.name, " ", c.kernel, ": ", c.failure, "\n");
  }
  fact(out, "self-test",
       cat(backend.name, ": ", checks.size() - static_cast<size_t>(wrong), " of ", checks.size(),
           " kernels agree with the reference (", cases, " cases)"));
  out << failures;
  return wrong == 0;
}

}  // namespace

std::vector<std::string> instruction_sets(std::string_view cpuinfo) {
  std::string flags = field(cpuinfo, "flags");
  if (flags.empty()) flags = field(cpuinfo, "Features");  // ARM
  const std::vector<std::string> words = split(flags, ' ');
  const std::set<std::string> have(words.begin(), words.end());
  std::vector<std::string> sets;
  for (const char* name : {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw",
                           "avx512vl", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile",
                           "amx_bf16", "asimd", "sve", "sve2", "bf16", "i8mm"}) {
    if (have.count(name)) sets.emplace_back(name);
  }
  return sets;
}

bool doctor(std::ostream& out) {
  describe_build(out);
  describe_machine(out);
  const bool cuda = at::globalContext().hasCUDA();
  describe_device(out, at::kCPU);
  if (cuda) describe_device(out, at::Device(at::kCUDA, 0));
  bool good = true;
  for (const kernels::Backend* backend : kernels::backends()) {
    if (backend->device == kernels::Device::kMeta) {
      fact(out, "self-test", cat(backend->name, ": computes nothing"));
      continue;
    }
    if (backend->device == kernels::Device::kCuda && !cuda) {
      fact(out, "self-test", cat(backend->name, ": not run, no GPU"));
      continue;
    }
    const bool on_gpu = backend->device == kernels::Device::kCuda;
    good &= check_backend(out, *backend, on_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
  }
  fact(out, "result",
       good ? "all kernels are right" : "some kernels are WRONG: results cannot be trusted");
  return good;
}

}  // namespace compact
