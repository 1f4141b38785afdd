// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/visualize.h"

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_visualize(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact visualize", command.summary);
  VisualizeOptions o;
  flags.group("Pictures");
  flags.add("model_name_or_path", o.folders, "folders of models, drawn side by side", "DIR...");
  flags.add("image", o.image, "number of the image whose maps are drawn, from 0");
  flags.add("layers", o.layers, "what to draw maps of; default: stem and all blocks",
            "stem layer1.*...");
  flags.add("max_channels", o.channels, "filters and maps drawn of a layer, the first ones");
  add_options(flags, Commands::kVisualize, o.config);
  if (!flags.parse(arguments)) return kExitOk;
  flags.apply();
  std::vector<std::string> warnings;
  visualize(o, std::cout, warnings);
  for (const std::string& line : warnings) std::cerr << "warning: " << line << "\n";
  return kExitOk;
}

}  // namespace compact::cli
