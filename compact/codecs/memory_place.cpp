// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/memory_place.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <system_error>
#include <vector>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/meta_device.h"

namespace compact {
namespace {

// A mapping that lives, or did: then `end` is 0. Signal handlers walk the list, so that its parts
// stay.
struct Mapping {
  uintptr_t begin;
  std::atomic<uintptr_t> end;
  std::string folder;
  Mapping* next;
  std::atomic<int> error{0};  // of writing to its file, which the system tells once
};
std::atomic<Mapping*> g_mappings{nullptr};
struct sigaction g_before;

// The system has no other way to say that a page of a mapped file could not be read or written.
void on_bus_error(int number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping* m = g_mappings; m; m = m->next) {
    if (address < m->begin || address >= m->end) continue;
    constexpr std::string_view kText =
        "error: a disk failed that holds the optimizer's state or weights (--offload_folder); "
        "checkpoints are as they were\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
    _exit(1);
  }
  sigaction(number, &g_before, nullptr);  // the access that failed is made again
}

Mapping* watch(const void* begin, size_t bytes, const std::string& folder) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, &g_before);
  });
  const auto first = reinterpret_cast<uintptr_t>(begin);
  auto* const mapping = new Mapping{first, first + bytes, folder, g_mappings};
  while (!g_mappings.compare_exchange_weak(mapping->next, mapping)) continue;
  return mapping;
}

at::Tensor mapped_zeros(at::IntArrayRef sizes, const at::TensorOptions& options,
                        const std::string& folder) {
  const auto bytes = static_cast<int64_t>(
      c10::multiply_integers(sizes) * c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  if (bytes == 0) return at::zeros(sizes, options);
  COMPACT_CHECK(!folder.empty(), "`disk` needs a folder for its files");
  const FileDescriptor file = unnamed_file(folder);
  struct statfs system = {};
  if (fstatfs(file.get(), &system) != 0) fail_with_errno(folder, "its file system is unknown");
  COMPACT_CHECK(system.f_type != TMPFS_MAGIC && system.f_type != RAMFS_MAGIC, folder,
                ": a folder for `disk` must be on a disk, this one is in memory (tmpfs)");
  // All of it now, so that no page is without a place later.
  if (const int error = posix_fallocate(file.get(), 0, bytes)) {
    errno = error;
    fail_with_errno(folder, cat("there is no room for ", format_bytes(bytes),
                                " more of weights and optimizer state"));
  }
  const auto size = static_cast<size_t>(bytes);
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (begin == MAP_FAILED) fail_with_errno(folder, "a file of it cannot be mapped");
  // An update goes through it from front to back. A process that is forked would write to the same
  // file: it has none of this.
  madvise(begin, size, MADV_SEQUENTIAL);
  madvise(begin, size, MADV_DONTFORK);
  const auto unmap = [size, mapping = watch(begin, size, folder), process = getpid()](void* p) {
    if (getpid() != process) return;  // which may have something else there
    mapping->end = 0;
    munmap(p, size);
  };
  return at::from_blob(begin, sizes, unmap, options);
}

at::Tensor pinned_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor host = at::zeros(sizes, options.device(at::kCPU).pinned_memory(true));
  if (host.numel() == 0) return at::zeros(sizes, options);
  // Freed memory may be given out again at once: not before the GPU is done with it.
  const auto release = [host, device = options.device()](void*) {
    try {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (...) {  // an earlier error of the GPU, which others report
    }
  };
  return at::for_blob(host.data_ptr(), sizes)
      .deleter(release)
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

}  // namespace

MemoryPlace memory_place(std::string_view word) {
  if (word.empty()) return MemoryPlace::kDevice;
  if (word == "offload") return MemoryPlace::kHost;
  COMPACT_CHECK(word == "disk", "a place is offload or disk, not `", word, "`",
                suggestion(word, std::vector<std::string>{"offload", "disk"}));
  return MemoryPlace::kDisk;
}

bool is_outside(MemoryPlace place, at::Device device) {
  return place == MemoryPlace::kDisk ||
         (place == MemoryPlace::kHost && device_type_of(device) != at::kCPU);
}

at::Tensor zeros_in(MemoryPlace place, at::IntArrayRef sizes, const at::TensorOptions& options,
                    const std::string& folder) {
  const bool cpu = device_type_of(options.device()) == at::kCPU;
  COMPACT_CHECK(cpu || place != MemoryPlace::kDisk,
                "`disk` is for a CPU; beside a GPU there is `offload`");
  if (!is_outside(place, options.device())) return at::zeros(sizes, options);
  if (options.device().is_meta()) {
    const MetaOnHost elsewhere;
    return at::zeros(sizes, options);
  }
  return cpu ? mapped_zeros(sizes, options, folder) : pinned_zeros(sizes, options);
}

void check_disks() {
  for (Mapping* m = g_mappings; m; m = m->next) {
    if (m->end == 0) continue;
    while (msync(reinterpret_cast<void*>(m->begin), 1, MS_SYNC) != 0) {
      if (errno == EINTR) continue;
      if (errno != ENOMEM) m->error = errno;  // ENOMEM: it is not, or no longer, in this process
      break;
    }
    if (m->error == 0) continue;
    throw DiskError(cat(m->folder,
                        ": the disk did not take weights or optimizer state that lie in it (",
                        std::generic_category().message(m->error),
                        "), so they are lost; checkpoints are as they were"));
  }
}

void read_ahead(const at::Tensor& t) {
  if (!t.is_cpu()) return;
  constexpr size_t kPiece = 1 << 17;  // one call reads no more
  auto* const begin = static_cast<char*>(t.data_ptr());
  for (size_t at = 0; at < t.nbytes(); at += kPiece) {
    madvise(begin + at, std::min(kPiece, t.nbytes() - at), MADV_WILLNEED);
  }
}

}  // namespace compact
