// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/visualize.h"

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_visualize(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact visualize", command.summary);
  VisualizeOptions o;
  flags.add("model_name_or_path", o.folders, "folders of models, drawn side by side", "DIR...");
  flags.add("validation_file", o.config.validation_file, "images, as in training");
  flags.add("image", o.image, "number of the image whose maps are drawn, from 0");
  flags.add("layers", o.layers, "what to draw maps of; default: stem and all blocks",
            "stem layer1.*...");
  flags.add("max_channels", o.channels, "filters and maps drawn of a layer, the first ones");
  flags.add("output_dir", o.config.output_dir, "where the pictures and index.html go", "DIR");
  flags.add("device", o.config.device, "auto: the GPU where there is one and kernels for it",
            "auto, cpu, cuda");
  flags.add("threads", o.config.threads, "CPU threads; 0: all cores");
  if (!flags.parse(arguments)) {
    std::cout << flags.help();
    return kExitOk;
  }
  flags.apply();
  std::vector<std::string> warnings;
  visualize(o, std::cout, warnings);
  for (const std::string& line : warnings) std::cerr << "warning: " << line << "\n";
  return kExitOk;
}

}  // namespace compact::cli
