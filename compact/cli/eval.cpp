// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/config/exit_codes.h"
#include "compact/io/json_file.h"
#include "compact/tasks/evaluate.h"

namespace compact::cli {

int run_eval(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact eval", command.summary);
  TrainConfig o;
  o.max_eval_samples = 0;
  std::string json;
  flags.add("model_name_or_path", o.model_name_or_path, "folder of the model", "DIR");
  flags.add("validation_file", o.validation_file, "text, images or a graph, as in training");
  flags.add("task_name", o.task_name, "a task of GLUE, for its dev set instead of a file", "NAME");
  flags.add("data_dir", o.data_dir, "with --task_name: the folder with the task's folder", "DIR");
  flags.add("tokenizer", o.tokenizer, "default: the one stored in the folder",
            "bytes, {sentencepiece,wordpiece,bpe}:file=PATH");
  flags.add("text_field", o.text_field, "field of a .jsonl line that holds the text", "NAME");
  flags.add("block_size", o.block_size, "tokens in a sequence");
  flags.add("text_column", o.text_column, "text-classification: column of the text", "NAME");
  flags.add("text_pair_column", o.text_pair_column, "of the second text of a pair", "NAME");
  flags.add("label_column", o.label_column, "of the class or value", "NAME");
  flags.add("max_seq_length", o.max_seq_length, "tokens that a text or pair is cut to");
  flags.add("per_device_eval_batch_size", o.per_device_eval_batch_size,
            "sequences, images or graphs in a batch");
  flags.add("max_eval_samples", o.max_eval_samples,
            "blocks of text, images or graphs evaluated; 0: all");
  flags.add("dtype", o.dtype, "type of weights and activations",
            "float32 (f32, fp32), bfloat16 (bf16)");
  flags.add("matmul_precision", o.matmul_precision, "of f32 products", "highest, high");
  flags.add("device", o.device, "auto: the GPU where there is one and kernels for it",
            "auto, cpu, cuda");
  flags.add("deterministic", o.deterministic, "on a GPU the same bits in every run");
  flags.add("threads", o.threads, "CPU threads; 0: all cores");
  flags.add("cache_dir", o.cache_dir, "where prepared text is kept; default: the user's cache",
            "DIR");
  flags.add("json", json, "write the figures here, too", "FILE");
  if (!flags.parse(arguments)) {
    std::cout << flags.help();
    return kExitOk;
  }
  flags.apply();
  const auto [results, unit, warnings] = evaluate(o);
  for (const std::string& line : warnings) std::cerr << "warning: " << line << "\n";
  nlohmann::ordered_json figures;
  for (const auto& [prefix, result] : results) {
    for (const auto& [name, value] : eval_row(prefix, result)) {
      std::cout << name << " " << value << "\n";
      figures[name] = number_or_null(value);
    }
    const std::string counted = cat(prefix, "_", unit);
    std::cout << counted << " " << format_count(result.targets) << "\n";
    figures[counted] = result.targets;
  }
  if (!json.empty()) write_json(json, figures);
  return kExitOk;
}

}  // namespace compact::cli
