// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option_groups_impl.h"

namespace compact {

OptionGroup options_of_model() {
  using enum ResumeRule;
  using enum Commands::Bit;
  return {
      "Task and model",
      {
          {OPTION(task, "what is trained"), .values = "see `compact list tasks`", .resume = kKept,
           .commands = kRunOrPlan | kEval,
           .elsewhere = {{kEval, "what is measured; default: what the folder was trained for"}}},
          {OPTION(model, "model by name, with new weights"), .values = "see `compact list models`",
           .resume = kKept},
          {OPTION(model_name_or_path,
                  "folder of a model: with weights to go on from, or config.json alone"),
           .values = "DIR", .resume = kFree, .commands = kRunOrPlan | kEval | kGenerate,
           .elsewhere = {{kEval | kGenerate, "folder of the model"}}},
          {OPTION(width_mult, "factor of an image model's widths"), .values = "X",
           .range = ValueRange::positive(16), .resume = kKept, .tasks = {"image-classification"}},
          {OPTION(hidden_size, "width of a graph network's layers; 0: the model's usual"),
           .range = ValueRange::at_least(0), .resume = kKept,
           .tasks = {"node-classification", "graph-classification"}},
          {OPTION(num_hidden_layers, "layers of a graph network; 0: the model's usual"),
           .range = ValueRange::at_least(0), .resume = kKept,
           .tasks = {"node-classification", "graph-classification"}},
          {OPTION(dropout,
                  "of graph networks, encoders and GPT-2, of other decoders' attention; -1: "
                  "the model's usual"),
           .range = ValueRange::part(), .resume = kKept,
           .tasks = {"node-classification", "graph-classification", "text-classification", "glue",
                     "language-modeling", "prompt-completion"}},
          {OPTION(task_name, "glue: which of its tasks"),
           .values = "cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli", .resume = kKept,
           .commands = kRunOrPlan | kEval,
           .elsewhere = {{kEval, "a task of GLUE, for its dev set instead of a file"}},
           .tasks = {"glue"}},
      }};
}

OptionGroup options_of_adapters() {
  using enum ResumeRule;
  const std::vector<std::string> decoders = {"language-modeling", "prompt-completion",
                                             "preference"};
  const std::pair<std::string, std::vector<std::string>> used = {"use_peft", {"true"}};
  const std::pair<std::string, std::vector<std::string>> coded = {"load_in_4bit", {"true"}};
  return {
      "Adapters (LoRA)",
      {
          {OPTION(use_peft, "the model is frozen, and adapters beside its products are trained"),
           .resume = kKept, .tasks = decoders},
          {OPTION(lora_r, "rank of the adapters"), .range = ValueRange::from(1, 65536),
           .resume = kKept, .tasks = decoders, .beside = used},
          {OPTION(lora_alpha, "the adapters' products are multiplied by lora_alpha / lora_r"),
           .range = ValueRange::positive(), .resume = kKept, .tasks = decoders, .beside = used},
          {OPTION(lora_dropout, "probability of dropout on the adapters' input"),
           .range = ValueRange::part(), .resume = kKept,
           .tasks = {"language-modeling", "prompt-completion"}, .beside = used},
          {OPTION(lora_target_modules,
                  "products that get an adapter, as transformers names them (q_proj v_proj), or "
                  "all-linear: every product of a block"),
           .values = "NAME...", .resume = kKept, .tasks = decoders, .beside = used},
          {OPTION(use_rslora, "multiply by lora_alpha / sqrt(lora_r) instead"), .resume = kKept,
           .tasks = decoders, .beside = used},
          {OPTION(load_in_4bit,
                  "beside adapters the matrices of blocks are held in codes of four bits (QLoRA)"),
           .resume = kKept, .tasks = decoders},
          {OPTION(bnb_4bit_quant_type, "what the codes mean"), .choices = {Choice("nf4")},
           .resume = kKept, .tasks = decoders, .beside = coded},
          {OPTION(use_bnb_nested_quant, "scales of the codes are codes of eight bits"),
           .resume = kKept, .tasks = decoders, .beside = coded},
      }};
}

OptionGroup options_of_data() {
  using enum ResumeRule;
  using enum Commands::Bit;
  return {
      "Data",
      {
          {OPTION(train_file,
                  "training text (.txt, .jsonl, each also .gz, .xz, .zst; patterns and folders of "
                  "such "
                  "allowed), a token file or a folder of `python -m compact.prepare`; images "
                  "(CIFAR-10's "
                  "records, idx, archives of folders); a graph"),
           .values = "FILE...", .resume = kFree},
          {OPTION(validation_file, "validation data of the same kind"), .values = "FILE...",
           .resume = kFree, .commands = kRun | kEval | kVisualize,
           .elsewhere = {{kEval, "text, images or a graph, as in training"},
                         {kVisualize, "images, as in training"}}},
          {OPTION(test_file, "classification: measured once, at the end"), .values = "FILE...",
           .resume = kFree, .commands = kRun},
          {OPTION(validation_split,
                  "without a validation file: the part of the training data held out, of text the "
                  "end"),
           .range = ValueRange::part(), .resume = kKept, .commands = kRun,
           .tasks = {"language-modeling", "prompt-completion", "preference", "image-classification",
                     "graph-classification", "text-classification"}},
          {OPTION(tokenizer,
                  "how text becomes tokens; default: the model's own, of a new model bytes, and "
                  "in plans without text the vocabulary that the model has"),
           .values = "DIR, bytes, {sentencepiece,wordpiece,bpe,prepared}:file=PATH",
           .resume = kFree, .commands = kRunOrPlan | kEval | kGenerate | kPrepare,
           .elsewhere = {{kEval | kGenerate, "default: the one stored in the folder"},
                         {kPrepare, "how text becomes tokens"}},
           .tasks = {"language-modeling", "prompt-completion", "preference", "text-classification",
                     "glue"}},
          {OPTION(text_field, "field of a .jsonl line that holds the text"), .values = "NAME",
           .resume = kKept, .commands = kRun | kEval, .tasks = {"language-modeling"}},
          {OPTION(strict,
                  "a line or picture that cannot be read ends the run; otherwise it is left out "
                  "with a warning that counts such and names the first"),
           .resume = kKept, .commands = kRunOrPlan | kEval | kPrepare},
          {OPTION(block_size, "tokens in a training sequence"), .range = ValueRange::at_least(1),
           .resume = kKept, .commands = kRunOrPlan | kEval,
           .elsewhere = {{kEval, "tokens in a sequence; default: the run's"}},
           .tasks = {"language-modeling", "prompt-completion", "preference"}},
          {OPTION(data_dir, "glue: the folder with the task's folder, as CoLA"), .values = "DIR",
           .resume = kFree, .commands = kRunOrPlan | kEval,
           .elsewhere = {{kEval, "with --task_name: the folder with the task's folder"}},
           .tasks = {"glue"}},
          {OPTION(text_column,
                  "text-classification: column or field of the text; default: sentence1, sentence "
                  "or text"),
           .values = "NAME", .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"text-classification"}},
          {OPTION(text_pair_column,
                  "of the second text of a pair; default: sentence2 where there is one"),
           .values = "NAME", .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"text-classification"}},
          {OPTION(label_column, "of the class or value"), .values = "NAME", .resume = kKept,
           .commands = kRunOrPlan | kEval, .tasks = {"text-classification"}},
          {OPTION(do_regression, "text-classification: labels are values"), .resume = kKept,
           .tasks = {"text-classification"}},
          {OPTION(prompt_column,
                  "field of the prompt, which has no loss; of several, as "
                  "instruction,input, each that is not empty on a line of its own"),
           .values = "NAME[,NAME...]", .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"prompt-completion", "preference"}},
          {OPTION(completion_column, "column with the completion, which is what the model learns"),
           .values = "NAME", .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"prompt-completion"}},
          {OPTION(chosen_column, "column with the answer that was preferred"), .values = "NAME",
           .resume = kKept, .commands = kRunOrPlan | kEval, .tasks = {"preference"}},
          {OPTION(rejected_column, "column with the answer that it was preferred to"),
           .values = "NAME", .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"preference"}},
          {OPTION(truncation,
                  "samples longer than --block_size lose their end, or the start of the prompt, "
                  "or are dropped; a warning says how many"),
           .choices = {{"end", {"keep_start"}}, {"start", {"keep_end"}}, {"drop"}}, .resume = kKept,
           .commands = kRunOrPlan | kEval, .tasks = {"prompt-completion", "preference"}},
          {OPTION(packing,
                  "prompt-completion: several samples share a row of --block_size, each with "
                  "positions and attention of its own; batches count rows"),
           .resume = kKept, .tasks = {"prompt-completion"}},
          {OPTION(max_seq_length,
                  "glue and text-classification: tokens that a text or pair is cut to"),
           .range = ValueRange::from(1, 1 << 20), .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"text-classification", "glue"}},
          {OPTION(max_train_samples,
                  "glue and text-classification: so many are trained on, drawn from all; 0: all"),
           .range = ValueRange::at_least(0), .resume = kKept,
           .tasks = {"text-classification", "glue"}},
          {OPTION(
               image_size,
               "pixels of a side: of each image the middle square is scaled to it; 0: as they are, "
               "or what a trained model was given; in plans without images the model's usual"),
           .range = ValueRange::from(0, 4096), .resume = kKept, .tasks = {"image-classification"}},
          {OPTION(augment, "training images are shifted and mirrored at random"), .resume = kKept,
           .tasks = {"image-classification"}},
          {OPTION(max_eval_samples,
                  "blocks of text, images or graphs evaluated, drawn from the whole set, the same "
                  "in every run; 0: all; -1: 256 blocks of text, all of others"),
           .range = ValueRange::at_least(-1), .resume = kFree, .commands = kRun | kEval},
          {OPTION(cache_dir, "where prepared text is kept; default: the user's cache"),
           .values = "DIR", .resume = kFree, .commands = kRunOrPlan | kEval},
      }};
}

}  // namespace compact
