// SPDX-License-Identifier: Apache-2.0
// The settings of a training run; option.h has the table of them. Names follow Hugging Face's
// Trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace compact {

struct TrainConfig {
  // Task and model
  std::string task = "language-modeling";  // a name of `compact list tasks`
  std::string model;                       // a name of `compact list models`
  std::string model_name_or_path;          // or a folder with config.json (and weights: continue)
  double width_mult = 1;                   // of an image model's widths
  // For graph networks; 0, or -1 for dropout: the model's usual value.
  int64_t hidden_size = 0, num_hidden_layers = 0;
  double dropout = -1;
  // Adapters
  bool use_peft = false;
  int64_t lora_r = 16;
  double lora_alpha = 32, lora_dropout = 0.05;
  std::vector<std::string> lora_target_modules = {"all-linear"};
  bool use_rslora = false;
  bool load_in_4bit = false, use_bnb_nested_quant = false;
  std::string bnb_4bit_quant_type = "nf4";
  // Data
  std::vector<std::string> train_file, validation_file, test_file;
  double validation_split = 0.05;
  std::string tokenizer;  // empty: the model's own, else bytes
  std::string text_field = "text";
  bool strict = false;              // unreadable samples are errors
  std::string task_name, data_dir;  // of GLUE
  std::string text_column, text_pair_column, label_column = "label";
  bool do_regression = false;
  std::string prompt_column = "prompt", completion_column = "completion";
  std::string chosen_column = "chosen", rejected_column = "rejected";
  std::string truncation = "end";  // what becomes of prompts longer than block_size
  bool packing = false;            // several samples share a row
  int64_t max_seq_length = 128;
  int64_t max_train_samples = 0;  // 0: all
  int64_t block_size = 256;
  int64_t image_size = 0;  // pixels of a side; 0: that of the files
  bool augment = true;
  int64_t max_eval_samples = -1;  // -1: the task's number; 0: all
  // Batch and length
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  int64_t max_steps = -1;
  double num_train_epochs = 1;
  // Optimizer
  std::string optim = "adamw";
  double learning_rate = -1;           // -1: the task's usual one
  double projected_learning_rate = 0;  // 0: as learning_rate
  std::string lr_scheduler_type = "cosine";
  double warmup_steps = -1;  // -1: the task's usual ones
  double min_lr_ratio = 0;
  double weight_decay = 0;
  double momentum = 0.9;
  double label_smoothing_factor = 0;
  std::string loss_type = "sigmoid";  // of preferences
  double beta = 0.1;
  std::string reference = "start";  // or "none", or a model folder
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
  // Precision and device
  std::string dtype = "float32";
  bool master_weights = false;
  std::string optim_state_dtype;  // empty: float32, or bfloat16 with bfloat16 weights and no master
  std::string offload_folder;     // of what a policy has on a disk; empty: output_dir
  std::string matmul_precision = "highest";
  int64_t bits_interval = 1000, bits_probes = 8;
  double bits_guard = 1;
  std::string device = "auto";
  bool deterministic = false;
  bool cuda_graph = false;
  int64_t ddp_timeout = 1800;  // seconds
  int64_t zero = 1;            // stage, of several ranks
  std::string reduce_dtype = "float32";
  bool deterministic_reduce = false;
  int64_t threads = 0;
  int64_t seed = 42;
  // Memory
  std::string preset = "exact";
  std::string policy;
  std::vector<std::string> set;
  double rank = 0;
  int64_t update_proj_gap = -1;
  double scale = 0;
  std::string proj_type;
  std::string carry_moments;  // empty: as the policy says
  std::string budget;         // of peak memory: "10GiB"; empty: none
  std::string allow = "lossless";
  // Output
  std::string output_dir;
  bool overwrite_output_dir = false;
  bool verbose = false;
  int64_t logging_steps = 10;
  int64_t eval_steps = 0;
  double eval_epochs = 0;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;  // empty: the task's first, else the loss
  int64_t save_steps = 0;
  int64_t save_total_limit = 0;
  int64_t measure_steps = 0;  // 0: train
  std::string resume_from_checkpoint;
  std::string cache_dir;
};

// Reads a TOML or JSON file (by its ending) whose keys are option names. Unknown keys are errors.
void read_config_file(TrainConfig& config, const std::string& path);

// The configuration as TOML (--print_config) and as JSON text (stored with runs).
std::string config_toml(const TrainConfig& config);
std::string config_json(const TrainConfig& config);
TrainConfig config_from_json(const std::string& text, const std::string& source);

}  // namespace compact
