// SPDX-License-Identifier: Apache-2.0
// An optimizer's state in files: the same bits as in memory, none of the memory, errors of the
// disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "compact/codecs/memory_place.h"
#include "tests/optim/every_optimizer.h"

// In place of libc's: what a disk that failed makes of it. The system tells an error once.
static int g_error_of_msync = 0;
extern "C" int msync(void* begin, size_t bytes, int flags) {
  if (g_error_of_msync == 0) return static_cast<int>(syscall(SYS_msync, begin, bytes, flags));
  errno = std::exchange(g_error_of_msync, 0);
  return -1;
}

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A folder on a disk: of the tests' results, since the system's folder of temporary files may lie
// in memory.
const std::string kFolder = ".";

class StateOnDisk : public EveryOptimizer {};
INSTANTIATE_TEST_SUITE_P(All, StateOnDisk, testing::ValuesIn(names_of(optimizers())),
                         [](const auto& info) { return info.param; });

// Through re-draws, in every type, with and without masters; and state goes from files to memory
// and back as a checkpoint's does.
TEST_P(StateOnDisk, HasTheSameBits) {
  for (const char* projection : {"", "srht"}) {
    for (const auto& [type, master] :
         {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
      for (const std::string moment : {"f32", "bf16", "f8"}) {
        SCOPED_TRACE(cat(projection, " ", c10::toString(type), master ? " master " : " ", moment));
        const ToyOptions toy{.projection = projection, .period = 3, .type = type};
        OptimizerOptions on_disk = options(master, moment + "+disk");
        on_disk.offload_folder = kFolder;
        Toy one(toy), two(toy);
        auto memory = std::make_unique<Optimizer>(one.pointers(), options(master, moment));
        auto disk = std::make_unique<Optimizer>(two.pointers(), on_disk);
        const auto run = [&](int64_t begin, int64_t end) {
          for (int64_t step = begin; step < end; ++step) {
            for (auto& [model, o] : {std::pair{&one, memory.get()}, {&two, disk.get()}}) {
              o->begin_backward(0.01);
              model->accumulate(step);
              o->step(0.01);
            }
          }
        };
        run(0, 5);
        expect_equal_weights(one, two);
        const OptimizerState from_memory = copy_of(memory->state()), from_disk = disk->state();
        EXPECT_EQ(from_memory.numbers, from_disk.numbers);
        ASSERT_EQ(from_memory.tensors.size(), from_disk.tensors.size());
        for (size_t i = 0; i < from_disk.tensors.size(); ++i) {
          EXPECT_TRUE(at::equal(from_memory.tensors[i].second, from_disk.tensors[i].second));
        }
        const OptimizerState saved = copy_of(from_disk);
        memory.reset();
        disk.reset();
        memory = std::make_unique<Optimizer>(one.pointers(), options(master, moment));
        disk = std::make_unique<Optimizer>(two.pointers(), on_disk);
        memory->load(saved);
        disk->load(from_memory);
        run(5, 8);
        expect_equal_weights(one, two);
      }
    }
  }
}

TEST(StatePlaces, RefusesOtherWordsAndFolders) {
  const auto refused = [](const std::string& moment, const std::string& folder) {
    return [=] {
      Parameter p{.name = "p", .weight = at::zeros({4, 4})};
      Optimizer({&p},
                {.moment = [=](const Parameter&) { return moment; }, .offload_folder = folder});
    };
  };
  const auto says = [](const char* text) { return ThrowsMessage<InputError>(HasSubstr(text)); };
  EXPECT_THAT(refused("f32+dsk", kFolder), says("did you mean `disk`"));
  EXPECT_THAT(refused("f32+disk+offload", kFolder), says("in one place"));
  EXPECT_THAT(refused("f32+disk:x=1", kFolder), says("x"));
  EXPECT_THAT(refused("f32+disk", ""), says("needs a folder"));
  EXPECT_THAT(refused("f32+disk", "no/such/folder"), says("no/such/folder: no file can be made"));
  struct statfs system = {};
  if (statfs("/dev/shm", &system) == 0 && system.f_type == 0x01021994) {
    EXPECT_THAT(refused("f32+disk", "/dev/shm"), says("this one is in memory (tmpfs)"));
  }
  EXPECT_THAT(
      [] { zeros_in(MemoryPlace::kDisk, {int64_t{1} << 50}, at::TensorOptions(), kFolder); },
      says("there is no room for 4096.0 TiB"));
}

// As when a disk is full behind the file system, or breaks: known until the state is gone.
TEST(StatePlaces, WhatADiskDidNotTakeIsAnError) {
  at::Tensor t = zeros_in(MemoryPlace::kDisk, {1 << 20}, at::TensorOptions(), kFolder);
  t.fill_(1);
  EXPECT_NO_THROW(check_disks());
  g_error_of_msync = ENOSPC;
  const auto says = ThrowsMessage<DiskError>(
      HasSubstr(kFolder + ": the disk did not take weights or optimizer state that lie in it (No "
                          "space left on device)"));
  EXPECT_THAT(check_disks, says);
  EXPECT_THAT(check_disks, says);
  t.reset();
  EXPECT_NO_THROW(check_disks());
}

// The file of a mapping, which has no name, cut short: what is read then is not there.
TEST(StatePlacesDeathTest, ADiskThatFailsSaysSo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork has no mapping
  const at::Tensor t = zeros_in(MemoryPlace::kDisk, {1 << 20}, at::TensorOptions(), kFolder);
  std::ifstream maps("/proc/self/maps");
  std::string line, range;
  while (range.empty() && std::getline(maps, line)) {
    const auto begin = std::stoull(line, nullptr, 16);
    if (begin == reinterpret_cast<uintptr_t>(t.data_ptr())) range = line.substr(0, line.find(' '));
  }
  const int file = open(("/proc/self/map_files/" + range).c_str(), O_RDWR);
  if (file < 0) GTEST_SKIP() << "this user may not open a mapping's file";
  ASSERT_EQ(ftruncate(file, 0), 0);
  close(file);
  EXPECT_EXIT(t.sum(), testing::ExitedWithCode(1), "error: a disk failed that holds the optimizer");
}

}  // namespace
}  // namespace compact
