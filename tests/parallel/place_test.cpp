// SPDX-License-Identifier: Apache-2.0
#include "compact/parallel/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using Variables = std::map<std::string, std::string>;

Place place(const Variables& variables) {
  return place_from([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refused(const Variables& variables) {
  return error_of([&] { place(variables); });
}

TEST(Place, IsAloneWhereNobodySaysOtherwise) {
  for (const Variables& v :
       {Variables{}, Variables{{"RANK", "3"}}, Variables{{"WORLD_SIZE", "1"}, {"RANK", "0"}},
        Variables{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}}) {
    EXPECT_EQ(place(v).size, 1);
    EXPECT_EQ(place(v).rank, 0);
  }
}

TEST(Place, IsWhatTorchrunSays) {
  const Place p = place({{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "node-a"},
                         {"MASTER_PORT", "29511"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(p.rank, 5);
  EXPECT_EQ(p.size, 8);
  EXPECT_EQ(p.local, 1);
  EXPECT_EQ(p.address, "node-a");
  EXPECT_EQ(p.port, 29511);
  EXPECT_TRUE(p.hosted);
  EXPECT_EQ(p.restarts, 2);
}

TEST(Place, IsWhatOtherLaunchersSay) {
  const Place mpi = place({{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"MASTER_ADDR", "a"},
                           {"MASTER_PORT", "7"}});
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.local, 0);
  EXPECT_EQ(mpi.port, 7);
  const Place slurm = place({{"SLURM_PROCID", "3"},
                             {"SLURM_STEP_NUM_TASKS", "11"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"}});
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.size, 11);
  EXPECT_EQ(slurm.local, 1);
  EXPECT_EQ(slurm.neighbours, 4);
  EXPECT_EQ(slurm.address, "10.0.0.1");
  EXPECT_FALSE(slurm.hosted);
}

TEST(Place, ByHandIsOnOneMachineWhereItMeetsThere) {
  const Variables here = {
      {"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(place(here).local, 1);
  EXPECT_EQ(place(here).neighbours, 3);
  Variables there = here;
  there["MASTER_ADDR"] = "first";
  EXPECT_EQ(place(there).local, 0);
  EXPECT_EQ(place(there).neighbours, 1);
}

TEST(Place, NamesWhatIsMissingOrOutOfRange) {
  const Variables sound = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(refused(sound), "");
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables v = sound;
    v.erase(name);
    EXPECT_THAT(refused(v), testing::HasSubstr(std::string("but ") + name + " is not set"));
  }
  const std::vector<std::pair<const char*, std::vector<const char*>>> bad = {
      {"RANK", {"2", "-1", "", "1x", "1.5"}},
      {"WORLD_SIZE", {"0", "-2", "two", "99999999999"}},
      {"MASTER_PORT", {"0", "65536", "port"}}};
  for (const auto& [name, values] : bad) {
    for (const char* value : values) {
      Variables v = sound;
      v[name] = value;
      EXPECT_THAT(refused(v), testing::HasSubstr(std::string("is `") + value + "`")) << name;
      EXPECT_THAT(refused(v), testing::StartsWith(name));
    }
  }
}

}  // namespace
}  // namespace compact
