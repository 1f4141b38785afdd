// SPDX-License-Identifier: Apache-2.0
// Which process of a run this is, as its launcher says in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace compact {

inline constexpr int kMostRanks = 65536;

struct Place {
  int rank = 0, size = 1;
  int local = 0;        // number among the processes of this machine, and so of its GPU
  int neighbours = 1;   // how many processes this machine has
  std::string address;  // of the machine where all connect
  int port = 0;         // on that machine
  bool hosted = false;  // the launcher holds the store there (torchrun); else rank 0 does
  int restarts = 0;     // how often the launcher has started all again
};

using Environment = std::function<std::optional<std::string>(const char* name)>;

// From RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them or a user does;
// without WORLD_SIZE from the names of Open MPI (OMPI_COMM_WORLD_*) or of SLURM in a step of
// several tasks (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE);
// MASTER_ADDR and MASTER_PORT beside them. One process where none is set. Throws InputError naming
// the variable that is missing or out of range.
Place place_from(const Environment& environment);
Place place_of_process();

}  // namespace compact
