// SPDX-License-Identifier: Apache-2.0
#include "compact/train/setup.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/data/prepare.h"
#include "compact/io/hf_config.h"
#include "compact/io/model_weights.h"
#include "compact/models/models.h"

namespace compact {
namespace {

constexpr uint64_t kWeightsKey = 1, kDataKey = 2, kOptimizerKey = 3, kNoiseKey = 4;

uint64_t key_of(const TrainConfig& c, uint64_t use) {
  return derive(static_cast<uint64_t>(c.seed), use);
}

bool has_weights(const std::string& folder) {
  const std::filesystem::path path(folder);
  return std::filesystem::exists(path / "model.safetensors") ||
         std::filesystem::exists(path / "model.safetensors.index.json");
}

}  // namespace

at::Device device_of(const std::string& name) {
  const bool cuda = at::globalContext().hasCUDA();
  if (name == "cpu" || (name == "auto" && !cuda)) return at::kCPU;
  COMPACT_CHECK(cuda, "--device cuda: this build of torch sees no GPU");
  return at::Device(at::kCUDA, 0);
}

at::ScalarType dtype_of(const std::string& name) {
  COMPACT_CHECK(name == "float32" || name == "bfloat16", "dtype must be float32 or bfloat16, is `",
                name, "`");
  return name == "float32" ? at::kFloat : at::kBFloat16;
}

Policy make_policy(const TrainConfig& c, std::vector<std::string>& warnings) {
  Policy policy = Policy::preset(c.preset);
  if (!c.policy.empty()) policy.append(Policy::from_file(c.policy));
  std::string lines;
  for (const std::string& line : c.set) lines += line + "\n";
  const Policy sets = Policy::parse(lines, "--set");

  const auto override_with = [&](const char* flag, const char* key, const std::string& value) {
    COMPACT_CHECK(!sets.sets_projection(key, value), "--", flag, " ", value,
                  " and a --set line give `", key, "` different values");
    if (policy.override_projection(key, value) == 0) {
      warnings.push_back(
          cat("--", flag, " takes no effect: preset `", c.preset, "` projects no gradient"));
    }
  };
  const auto text = [](double x) { return cat(x); };
  if (c.rank > 0) override_with("rank", "rank", text(c.rank));
  if (c.update_proj_gap >= 0) override_with("update_proj_gap", "period", cat(c.update_proj_gap));
  if (c.scale > 0) override_with("scale", "scale", text(c.scale));
  if (!c.proj_type.empty()) override_with("proj_type", "type", c.proj_type);
  if (!c.carry_moments.empty()) override_with("carry_moments", "carry", c.carry_moments);
  policy.append(sets);
  return policy;
}

DataSources open_data(const TrainConfig& c, const Progress& progress,
                      std::vector<std::string>& warnings) {
  DataSources data;
  data.tokenizer = make_tokenizer(c.tokenizer);
  const std::string cache = c.cache_dir.empty() ? default_cache_folder() : c.cache_dir;
  const auto open = [&](const std::vector<std::string>& inputs) {
    PrepareOptions options{.field = c.text_field, .progress = progress};
    const CachedTokens tokens = cached_token_file(inputs, *data.tokenizer, cache, options);
    if (tokens.prepared.replaced > 0) {
      warnings.push_back(
          cat(inputs[0], ": ", tokens.prepared.replaced, " invalid UTF-8 sequences became U+FFFD"));
    }
    return std::make_shared<const TokenFile>(tokens.path);
  };
  const auto file = open(c.train_file);
  data.checksum = file->info().checksum;
  TokenRange train{0, file->count()};
  const uint64_t key = key_of(c, kDataKey);
  if (!c.validation_file.empty()) {
    data.validation = std::make_unique<BlockDataset>(open(c.validation_file), c.block_size, key);
    if (c.validation_split != TrainConfig().validation_split) {
      warnings.push_back(cat("--validation_split takes no effect: there is a --validation_file"));
    }
  } else if (c.validation_split > 0) {
    const auto [first, last] = split_end(file->count(), c.validation_split);
    train = first;
    if (last.end - last.begin > c.block_size) {
      data.validation = std::make_unique<BlockDataset>(file, last, c.block_size, key);
    } else {
      warnings.push_back(cat("no validation: the part held out has ", last.end - last.begin,
                             " tokens, a block needs ", c.block_size + 1));
    }
  }
  data.train = std::make_unique<BlockDataset>(file, train, c.block_size, key);
  return data;
}

int64_t total_steps(const TrainConfig& c, int64_t blocks) {
  if (c.max_steps > 0) return c.max_steps;
  const int64_t step = c.per_device_train_batch_size * c.gradient_accumulation_steps;
  return std::max<int64_t>(1, std::llround(c.num_train_epochs * static_cast<double>(blocks) /
                                           static_cast<double>(step)));
}

LlamaConfig model_config(const TrainConfig& c, const Tokenizer& tokenizer) {
  LlamaConfig shape;
  if (c.model.empty()) {
    shape = read_llama_config(c.model_name_or_path);
    COMPACT_CHECK(tokenizer.vocabulary() <= shape.vocab_size, "--tokenizer ", tokenizer.spec(),
                  " has ", tokenizer.vocabulary(), " tokens, the model of ", c.model_name_or_path,
                  " only ", shape.vocab_size);
  } else {
    shape = model_named(c.model).config;
    shape.vocab_size = tokenizer.vocabulary();
    shape.eos_token_ids = {static_cast<int64_t>(tokenizer.end_of_text())};
    shape.max_position_embeddings = std::max(shape.max_position_embeddings, c.block_size);
  }
  COMPACT_CHECK(c.block_size <= shape.max_position_embeddings, "--block_size ", c.block_size,
                " is longer than the model's max_position_embeddings ",
                shape.max_position_embeddings);
  shape.torch_dtype = c.dtype;
  return shape;
}

void load_weights(Llama& model, const std::string& folder) {
  at::NoGradGuard no_grad;
  const ModelWeights weights(folder);
  for (auto& [name, tensor] : model.hugging_face_tensors()) {
    weights.read_into(name, tensor, Cast::kAllow);
  }
}

std::unique_ptr<Llama> make_model(const TrainConfig& c, const LlamaConfig& shape,
                                  const Policy& policy, at::Device device,
                                  std::vector<std::string>& warnings) {
  auto model = std::make_unique<Llama>(shape, policy,
                                       ModelOptions{.device = device,
                                                    .dtype = dtype_of(c.dtype),
                                                    .max_length = c.block_size,
                                                    .seed = key_of(c, kWeightsKey)});
  if (c.model.empty()) {
    if (has_weights(c.model_name_or_path)) {
      load_weights(*model, c.model_name_or_path);
    } else {
      warnings.push_back(
          cat(c.model_name_or_path, " has no weights: training starts from new ones"));
    }
  }
  return model;
}

OptimizerOptions optimizer_options(const TrainConfig& c, const Policy& policy) {
  std::string state = c.optim_state_dtype;
  if (state.empty()) state = c.dtype == "bfloat16" && !c.master_weights ? "bfloat16" : "float32";
  state = state == "float8" ? "f8" : state == "bfloat16" ? "bf16" : "f32";
  OptimizerOptions options;
  options.kind = optimizer_kind(c.optim);
  options.beta1 = c.adam_beta1;
  options.beta2 = c.adam_beta2;
  options.eps = c.adam_epsilon;
  options.weight_decay = c.weight_decay;
  options.master_weights = c.master_weights;
  if (c.projected_learning_rate > 0) {
    options.hidden_lr_factor = c.projected_learning_rate / c.learning_rate;
  }
  options.seed = key_of(c, kOptimizerKey);
  options.moment = [policy, state](const Parameter& p) {
    const Spec moment = policy.moment(p.name);
    return moment.name.empty() ? state : moment.name;
  };
  return options;
}

uint64_t noise_key(const TrainConfig& c, int64_t step, int64_t micro) {
  return derive(derive(key_of(c, kNoiseKey), static_cast<uint64_t>(step)),
                static_cast<uint64_t>(micro));
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& c, const Policy& policy,
                                          Llama& model) {
  return std::make_unique<Optimizer>(model.parameters(), optimizer_options(c, policy));
}

}  // namespace compact
