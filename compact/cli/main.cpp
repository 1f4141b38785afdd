// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/commands.h"

int main(int argc, char** argv) { return compact::cli::run_program({argv + 1, argv + argc}); }
