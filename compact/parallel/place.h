// SPDX-License-Identifier: Apache-2.0
// Which of the processes of a run this one is, as its launcher says it in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace compact {

inline constexpr int kMostRanks = 65536;

struct Place {
  int rank = 0, size = 1;
  int local = 0;        // number among those of this machine: that of its GPU
  int neighbours = 1;   // how many those are
  std::string address;  // of the machine that all meet at
  int port = 0;         // there
  bool hosted = false;  // the launcher holds the store there (torchrun); else rank 0 does
  int restarts = 0;     // how often the launcher has started all again
};

using Environment = std::function<std::optional<std::string>(const char* name)>;

// From RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them or a user does;
// where WORLD_SIZE is not there from the names of Open MPI (OMPI_COMM_WORLD_*) or of SLURM in a
// step of several tasks (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,
// SLURM_STEP_TASKS_PER_NODE); MASTER_ADDR and MASTER_PORT beside them. One process where none is
// there. Throws InputError naming the variable that is missing or out of range.
Place place_from(const Environment& environment);
Place place_of_process();

}  // namespace compact
