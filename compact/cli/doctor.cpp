// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/doctor.h"

#include <chrono>
#include <iostream>

#include "compact/apps/doctor_ranks.h"
#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/config/exit_codes.h"
#include "compact/parallel/place.h"
#include "compact/train/failures.h"

namespace compact::cli {
namespace {

constexpr std::chrono::seconds kPatience(60);  // for a rank that does not answer

}  // namespace

int run_doctor(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact doctor", command.summary);
  if (!flags.parse(arguments)) return kExitOk;
  const Place place = place_of_process();
  if (place.size == 1) return doctor(std::cout) ? kExitOk : kExitInternal;
  const auto group = join_group(place, kPatience);
  return together(*group, [&] {
    bool good = true;
    group->lead([&] { good = doctor(std::cout); });
    good &= try_ranks(*group, std::cout);
    return good ? kExitOk : kExitInternal;
  });
}

}  // namespace compact::cli
