// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "compact/apps/process.h"
#include "compact/cli/commands.h"
#include "compact/cli/commit.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not an end
  compact::end_with_parent();
  return compact::cli::run_program({argv + 1, argv + argc}, COMPACT_COMMIT);
}
