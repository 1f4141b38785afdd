// SPDX-License-Identifier: Apache-2.0
#include "compact/train/config.h"

namespace compact {

std::span<const ConfigOption> config_options() {
  using C = TrainConfig;
  static const ConfigOption all[] = {
      {"model", &C::model, "Model", "model by name, with new weights", "see `compact list models`"},
      {"model_name_or_path", &C::model_name_or_path, "Model",
       "Hugging Face folder of a llama: with weights to go on from, or config.json alone", "DIR"},

      {"train_file", &C::train_file, "Data",
       "training text (.txt, .jsonl, each also .gz, .xz, .zst; patterns allowed) or a token file", "FILE..."},
      {"validation_file", &C::validation_file, "Data", "validation text or token file", "FILE..."},
      {"validation_split", &C::validation_split, "Data",
       "without a validation file: the part of the training tokens held out at the end", "0 <= x < 1"},
      {"tokenizer", &C::tokenizer, "Data", "how text becomes tokens", "bytes, sentencepiece:file=PATH"},
      {"text_field", &C::text_field, "Data", "field of a .jsonl line that holds the text", "NAME"},
      {"block_size", &C::block_size, "Data", "tokens in a training sequence", "N"},
      {"max_eval_samples", &C::max_eval_samples, "Data", "blocks evaluated; 0: all", "N"},
      {"cache_dir", &C::cache_dir, "Data", "where prepared text is kept; default: the user's cache", "DIR"},

      {"per_device_train_batch_size", &C::per_device_train_batch_size, "Batch and length",
       "sequences in a micro-batch", "N"},
      {"per_device_eval_batch_size", &C::per_device_eval_batch_size, "Batch and length",
       "sequences in an evaluation batch", "N"},
      {"gradient_accumulation_steps", &C::gradient_accumulation_steps, "Batch and length",
       "micro-batches in a step", "N"},
      {"max_steps", &C::max_steps, "Batch and length", "optimizer steps; -1: by epochs", "N"},
      {"num_train_epochs", &C::num_train_epochs, "Batch and length", "epochs, without max_steps", "X"},

      {"optim", &C::optim, "Optimizer", "muon: for the matrices of blocks, AdamW for the rest", "adamw, muon"},
      {"learning_rate", &C::learning_rate, "Optimizer", "peak learning rate", "X"},
      {"projected_learning_rate", &C::projected_learning_rate, "Optimizer",
       "peak learning rate of the matrices of blocks; 0: learning_rate", "X"},
      {"lr_scheduler_type", &C::lr_scheduler_type, "Optimizer", "shape after warm-up", "cosine, linear, constant, wsd"},
      {"warmup_steps", &C::warmup_steps, "Optimizer", "steps of warm-up; below 1: a part of all steps", "N or ratio"},
      {"min_lr_ratio", &C::min_lr_ratio, "Optimizer", "last learning rate as a part of the peak", "0 <= x <= 1"},
      {"weight_decay", &C::weight_decay, "Optimizer", "decoupled weight decay of matrices", "X"},
      {"adam_beta1", &C::adam_beta1, "Optimizer", "decay of the first moment", "X"},
      {"adam_beta2", &C::adam_beta2, "Optimizer", "decay of the second moment", "X"},
      {"adam_epsilon", &C::adam_epsilon, "Optimizer", "added to the root of the second moment", "X"},
      {"max_grad_norm", &C::max_grad_norm, "Optimizer", "gradients are clipped to this norm; 0: not", "X"},

      {"dtype", &C::dtype, "Precision and device", "type of weights and activations", "float32, bfloat16"},
      {"master_weights", &C::master_weights, "Precision and device",
       "bfloat16: keep an f32 copy of weights; without it they are rounded stochastically", "true, false"},
      {"optim_state_dtype", &C::optim_state_dtype, "Precision and device",
       "type of moments; default: bfloat16 with bfloat16 weights without master, else float32", "float32, bfloat16"},
      {"matmul_precision", &C::matmul_precision, "Precision and device",
       "highest: true f32 products; high: the fastest path", "highest, high"},
      {"device", &C::device, "Precision and device", "auto: the GPU where there is one", "auto, cpu, cuda"},
      {"threads", &C::threads, "Precision and device", "CPU threads; 0: all cores", "N"},
      {"seed", &C::seed, "Precision and device", "of weights, data order, projections and rounding", "N"},

      {"preset", &C::preset, "Memory", "how saved tensors and gradients are held", "see `compact list presets`"},
      {"policy", &C::policy, "Memory", "a policy file, above the preset", "FILE"},
      {"set", &C::set, "Memory", "a policy line, above all: \"slot layers.*.mlp.gate_up = recompute\"", "LINE..."},
      {"rank", &C::rank, "Memory",
       "rank of projections: below 1 a part of the input width; 0: as the policy says", "X"},
      {"update_proj_gap", &C::update_proj_gap, "Memory",
       "steps between re-draws of projections; 0: never; -1: as the policy says", "N"},
      {"scale", &C::scale, "Memory", "alpha of the projected update; 0: as the policy says", "X"},
      {"proj_type", &C::proj_type, "Memory", "projection; default: as the policy says", "srht, gaussian, rademacher, sparse"},
      {"carry_moments", &C::carry_moments, "Memory",
       "moments follow the basis at a re-draw; default: as the policy says", "true, false"},

      {"output_dir", &C::output_dir, "Output", "folder of the run", "DIR"},
      {"overwrite_output_dir", &C::overwrite_output_dir, "Output", "replace a run that is there", "true, false"},
      {"logging_steps", &C::logging_steps, "Output", "steps between lines", "N"},
      {"eval_steps", &C::eval_steps, "Output", "steps between evaluations; 0: at the end only", "N"},
      {"save_steps", &C::save_steps, "Output", "steps between checkpoints; 0: only when interrupted", "N"},
      {"save_total_limit", &C::save_total_limit, "Output", "newest checkpoints kept; 0: all", "N"},
      {"resume_from_checkpoint", &C::resume_from_checkpoint, "Output",
       "go on from a checkpoint folder, or `latest` of output_dir", "DIR, latest"},
  };
  return all;
}

}  // namespace compact
