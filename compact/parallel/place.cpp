// SPDX-License-Identifier: Apache-2.0
#include "compact/parallel/place.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "compact/base/check.h"

namespace compact {
namespace {

struct Names {
  const char *rank, *size, *local, *neighbours;
};
constexpr Names kNames[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}};

// Most tasks on one machine: SLURM writes "4(x2),3" for two machines with 4 and one with 3.
int most_of(const std::string& text) {
  int most = 1;
  for (size_t at = 0; at < text.size();) {
    int value = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), value);
    most = std::max(most, value);
    at = text.find(',', at);
    if (at != text.npos) ++at;
  }
  return std::min(most, kMostRanks);
}

std::optional<int> number(const Environment& environment, const char* name, int least, int most) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  COMPACT_CHECK(
      error == std::errc() && end == text->data() + text->size() && value >= least && value <= most,
      name, " must be an integer in [", least, ", ", most, "], is `", *text, "`");
  return value;
}

}  // namespace

Place place_from(const Environment& environment) {
  Place p;
  const Names* names = nullptr;
  for (const Names& n : kNames) {
    if (const auto size = number(environment, n.size, 1, kMostRanks)) {
      p.size = *size;
      names = &n;
      break;
    }
  }
  p.restarts = number(environment, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
  if (!names || p.size == 1) return p;
  const auto rank = number(environment, names->rank, 0, p.size - 1);
  COMPACT_CHECK(rank, names->size, " is ", p.size, ", but ", names->rank, " is not set");
  p.rank = *rank;
  const auto address = environment("MASTER_ADDR");
  COMPACT_CHECK(
      address && !address->empty(), names->size, " is ", p.size,
      ", but MASTER_ADDR is not set: the machine of rank 0 (WORLD_SIZE=1 is one process)");
  p.address = *address;
  const auto port = number(environment, "MASTER_PORT", 1, 65535);
  COMPACT_CHECK(port, names->size, " is ", p.size, ", but MASTER_PORT is not set: a free port of ",
                p.address);
  p.port = *port;
  // Without the variable (started by hand) a local address means one machine.
  const bool here = p.address == "localhost" || p.address.starts_with("127.");
  p.local = number(environment, names->local, 0, kMostRanks).value_or(here ? p.rank : 0);
  const auto neighbours = environment(names->neighbours);
  p.neighbours = neighbours ? most_of(*neighbours) : here ? p.size : 1;
  p.hosted = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return p;
}

Place place_of_process() {
  return place_from([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace compact
