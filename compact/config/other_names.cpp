// SPDX-License-Identifier: Apache-2.0
#include "compact/config/other_names.h"

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

struct OtherName {
  std::string_view name, here;  // flags, which begin with a dash, or a sentence
};

constexpr OtherName kNames[] = {
    {"activation_offloading", "--set \"slot layers.* = offload\", on a GPU"},
    {"assistant_only_loss", "--task prompt-completion, whose loss is on completions alone"},
    {"attn_implementation", "attention takes the fastest kernel that there is"},
    {"auto_find_batch_size", "--preset auto --budget 90%, or `compact plan --max_batch`"},
    {"bf16", "--dtype bfloat16"},
    {"bf16_full_eval", "--dtype bfloat16"},
    {"bnb_4bit_compute_dtype", "--dtype"},
    {"bnb_4bit_use_double_quant", "--use_bnb_nested_quant"},
    {"completion_only_loss", "--task prompt-completion, whose loss is on completions alone"},
    {"data_seed", "--seed, which also orders the data"},
    {"dataloader_num_workers", "data are read without workers"},
    {"dataset_name", "--train_file; data sets are not downloaded"},
    {"dataset_text_field", "--text_field"},
    {"ddp_backend", "it follows from --device, under torchrun"},
    {"deepspeed", "--zero 1, 2 or 3, under torchrun"},
    {"disable_dropout", "--dropout 0, which --task preference has by default"},
    {"do_eval", "`compact eval`, or --eval_steps in training"},
    {"do_train", "`compact train`"},
    {"epochs", "--num_train_epochs"},
    {"eval_packing", "--packing, of what is trained on; evaluations are padded"},
    {"eval_strategy", "--eval_steps or --eval_epochs"},
    {"evaluation_strategy", "--eval_steps or --eval_epochs"},
    {"fp16", "--dtype bfloat16; there is no float16"},
    {"fsdp", "--zero 3, under torchrun"},
    {"full_determinism", "--deterministic"},
    {"gradient_checkpointing", "--preset recompute"},
    {"gradient_checkpointing_kwargs", "--preset recompute"},
    {"group_by_length", "batches are as long as their longest sample"},
    {"hub_model_id", "nothing is sent anywhere; transformers loads --output_dir"},
    {"label_smoothing", "--label_smoothing_factor"},
    {"load_in_8bit", "--load_in_4bit; other weights are float32 or bfloat16 (--dtype)"},
    {"logging_dir", "TensorBoard's events are always in --output_dir"},
    {"logging_strategy", "--logging_steps"},
    {"lora_task_type", "it follows from --task"},
    {"loss_type dpo", "--loss_type sigmoid"},
    {"lr", "--learning_rate"},
    {"max_length", "--block_size of decoders, --max_seq_length of encoders"},
    {"max_prompt_length", "--block_size with --truncation start, which shortens prompts"},
    {"mixed_precision", "--dtype bfloat16, perhaps with --master_weights true"},
    {"neftune_noise_alpha",
     "embeddings get no noise; --dropout is what there is against overfitting"},
    {"no_cuda", "--device cpu"},
    {"num_epochs", "--num_train_epochs"},
    {"optim adamw_8bit", "--optim adamw --optim_state_dtype float8"},
    {"optim adamw_bnb_8bit", "--optim adamw --optim_state_dtype float8"},
    {"optim adamw_hf", "--optim adamw"},
    {"optim adamw_torch_8bit", "--optim adamw --optim_state_dtype float8"},
    {"optim paged_adamw_32bit", "--optim adamw --set \"moment * = f32+offload\""},
    {"optim paged_adamw_8bit", "--optim adamw --set \"moment * = f8+offload\""},
    {"optim_args", "--adam_beta1, --adam_beta2 or --adam_epsilon"},
    {"packing_strategy", "--packing, best-fit decreasing"},
    {"padding_free", "--packing, whose rows are nearly full"},
    {"precompute_ref_log_probs", "they are always computed once, before the first step"},
    {"push_to_hub", "nothing is sent anywhere; transformers loads --output_dir"},
    {"ref_model", "--reference"},
    {"ref_model_name_or_path", "--reference"},
    {"reference_free", "--reference none"},
    {"remove_unused_columns", "columns that no option names are not read"},
    {"report_to", "TensorBoard's events and metrics.jsonl are always in --output_dir"},
    {"rpo_alpha", "there is no loss on chosen answers beside that of pairs"},
    {"run_name", "--output_dir, whose last folder is the name"},
    {"save_safetensors", "weights are always written to model.safetensors"},
    {"save_strategy", "--save_steps"},
    {"streaming", "text is read block by block and kept as tokens in --cache_dir"},
    {"sync_ref_model", "the reference stays what it was at the start"},
    {"task dpo", "--task preference"},
    {"tf32", "--matmul_precision high"},
    {"torch_compile", "layers are fused without it"},
    {"torch_dtype", "--dtype"},
    {"truncation_mode", "--truncation"},
    {"use_cpu", "--device cpu"},
    {"use_liger_kernel", "layers and the loss are fused by --preset exact, the default"},
    {"use_lora", "--use_peft"},
    {"wandb_project", "TensorBoard's events and metrics.jsonl are always in --output_dir"},
    {"warmup_ratio", "--warmup_steps, below 1 a part of all steps"},
};

}  // namespace

std::string name_here(std::string_view name) {
  const auto found = std::ranges::find(kNames, name, &OtherName::name);
  if (found == std::end(kNames)) return {};
  const bool sentence = found->here.front() != '-' && found->here.front() != '`';
  return cat(sentence ? "" : "here it is ", found->here);
}

}  // namespace compact
