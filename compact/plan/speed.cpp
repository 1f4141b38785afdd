// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/speed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

constexpr int64_t kMostTokens = 2048;
constexpr int kRounds = 3;

LlamaConfig one_block(LlamaConfig shape) {
  shape.num_hidden_layers = 1;
  shape.vocab_size = 64;
  shape.bos_token_id.reset();
  shape.eos_token_ids.clear();
  return shape;
}

Llama block_on(at::Device device, const PlanRequest& r, int64_t length) {
  return {one_block(r.shape),
          Policy::preset("off"),
          {.device = device, .dtype = r.dtype, .max_length = length}};
}

template <class F>
double least_seconds(F run) {
  double least = 1e30;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    least = std::min(
        least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

// What the figures depend on.
std::string key_of(const PlanRequest& r) {
  const LlamaConfig& c = r.shape;
  return cat("cpu ", at::get_num_threads(), " threads ", c10::toString(r.dtype), " ", c.hidden_size,
             " ", c.intermediate_size, " ", c.num_attention_heads, " ", c.num_key_value_heads, " ",
             c.head_dim, " length ", std::min(r.step.length, kMostTokens));
}

using nlohmann::json;

// What was measured under `key` in `folder`/speed.json, where `usable` takes it, else what
// `measure` gives, which is then remembered.
json remembered(const std::string& folder, const std::string& key,
                FunctionRef<bool(const json&)> usable, FunctionRef<json()> measure) {
  const std::filesystem::path file = std::filesystem::path(folder) / "speed.json";
  json all = json::object(), entry;
  if (!folder.empty() && is_file(file)) {
    try {
      all = json::parse(read_text(file, int64_t{1} << 24), nullptr, /*allow_exceptions=*/false);
    } catch (const InputError&) {  // cannot be read: made anew
    }
    if (!all.is_object()) all = json::object();
    entry = all.value(key, json());
  }
  if (entry.is_object() && usable(entry)) return entry;
  entry = measure();
  if (folder.empty()) return entry;
  all[key] = entry;
  try {
    std::filesystem::create_directories(folder);
    write_file_atomically(file, all.dump(1) + "\n");
  } catch (const std::exception&) {  // not remembered, then
  }
  return entry;
}

bool positive(const json& object, const char* key) {
  const auto one = [](const json& x) {
    return x.is_number() && std::isfinite(x.get<double>()) && x.get<double>() > 0;
  };
  if (!object.contains(key)) return false;
  const json& value = object[key];
  return value.is_array() ? std::ranges::all_of(value, one) : one(value);
}

std::string measured_here() {
  return cat("measured on this machine, ", at::get_num_threads(), " threads");
}

// Read and written, a second.
double copied_bytes() {
  const at::Tensor from = at::zeros({16 << 20}, at::kFloat), to = at::zeros_like(from);
  return 2 * static_cast<double>(from.nbytes()) / least_seconds([&] { to.copy_(from); });
}

}  // namespace

Speed measured_speed(const PlanRequest& r, const std::string& folder) {
  const int64_t length = std::min(r.step.length, kMostTokens);
  const int64_t batch = kMostTokens / length;
  const auto tokens = static_cast<double>(batch * length);
  const size_t steps = block_on(at::kMeta, r, length).segments()[0]->rerun().size();
  const auto usable = [&](const json& e) {
    return positive(e, "block") && e["block"].size() == steps && positive(e, "products") &&
           positive(e, "bytes");
  };
  const auto measure = [&] {
    const at::NoGradGuard no_grad;
    const Llama model = block_on(at::kCPU, r, length);
    const auto options = at::device(at::kCPU).dtype(r.dtype);
    const at::Tensor x = at::ones({batch, length, r.shape.hidden_size}, options);
    std::vector<double> seconds;
    model.each_segment({at::zeros({batch, length}, at::kLong)},
                       [&](const Segment& s, const at::Tensor& input, Weights weights) {
                         if (seconds.empty()) seconds = s.forward_seconds(input, weights, kRounds);
                       });
    for (double& s : seconds) s /= tokens;
    const at::Tensor rows = x.reshape({-1, r.shape.hidden_size}),
                     head = at::ones({4096, r.shape.hidden_size}, options);
    const double product = least_seconds([&] { rows.mm(head.t()); });
    return json{
        {"block", seconds},
        {"products", 2 * tokens * 4096 * static_cast<double>(r.shape.hidden_size) / product},
        {"bytes", copied_bytes()}};
  };
  const json entry = remembered(folder, key_of(r), usable, measure);
  Speed speed{.source = measured_here(),
              .segments = {entry["block"].get<std::vector<double>>()},
              .bytes_per_second = entry["bytes"]};
  const auto step_tokens = static_cast<double>(r.step.batch * r.step.length);
  for (double& s : speed.segments[0]) s *= step_tokens;
  speed.head = 2 * step_tokens * static_cast<double>(r.shape.hidden_size * r.shape.vocab_size) /
               entry["products"].get<double>();
  return speed;
}

Speed measured_speed(const TimedNetwork& timed, const std::string& folder) {
  const auto usable = [&](const json& e) {
    if (!positive(e, "bytes") || !e.contains("segments") || !e["segments"].is_array() ||
        e["segments"].size() != timed.steps.size()) {
      return false;
    }
    for (size_t i = 0; i < timed.steps.size(); ++i) {
      const json segment = {{"steps", e["segments"][i]}};
      if (!segment["steps"].is_array() || segment["steps"].size() != timed.steps[i] ||
          !positive(segment, "steps")) {
        return false;
      }
    }
    return true;
  };
  const auto measure = [&] {
    std::vector<std::vector<double>> segments;
    timed.network()->each_segment(timed.inputs(timed.samples),
                                  [&](const Segment& s, const at::Tensor& x, Weights weights) {
                                    segments.push_back(s.forward_seconds(x, weights, kRounds));
                                  });
    return json{{"segments", segments}, {"bytes", copied_bytes()}};
  };
  const std::string key =
      cat("cpu ", at::get_num_threads(), " threads ", timed.samples, " samples ", timed.key);
  const json entry = remembered(folder, key, usable, measure);
  Speed speed{.source = measured_here(),
              .segments = entry["segments"].get<std::vector<std::vector<double>>>(),
              .bytes_per_second = entry["bytes"]};
  for (auto& segment : speed.segments) {
    for (double& s : segment) {
      s *= static_cast<double>(timed.batch) / static_cast<double>(timed.samples);
    }
  }
  return speed;
}

std::vector<std::vector<Work>> forward_work(const StepRequest& request) {
  prepare_meta(request.device);
  std::vector<std::vector<Work>> all;
  const auto network = request.network(at::kMeta);
  network->each_segment(request.micro_batch(at::kMeta, 0).inputs,
                        [&](const Segment& s, const at::Tensor& x, Weights weights) {
                          all.push_back(s.work(x, weights));
                        });
  COMPACT_CHECK(all.size() == network->segments().size(),
                "[plan] the network does not show its segments");
  return all;
}

Rebuilding rebuilding(const Segment& segment, const std::vector<double>& seconds,
                      const std::vector<Work>& work) {
  Rebuilding sum;
  const std::vector<bool> again = segment.rerun();
  for (size_t i = 0; i < again.size(); ++i) {
    if (!again[i]) continue;
    sum.seconds += seconds[i];
    sum.products += work[i].products;
  }
  return sum;
}

Speed stated_speed(const std::vector<std::vector<Work>>& work, double products, double bytes) {
  COMPACT_CHECK(products > 0 && bytes > 0,
                "--device_tflops and --device_gbps must be positive, are ", products * 1e-12,
                " and ", bytes * 1e-9);
  Speed speed{.source = cat("stated: ", products * 1e-12, " TFLOP/s, ", bytes * 1e-9, " GB/s"),
              .bytes_per_second = bytes};
  for (const std::vector<Work>& segment : work) {
    auto& seconds = speed.segments.emplace_back();
    for (const Work& w : segment) {
      seconds.push_back(std::max(w.products / products, w.bytes / bytes));
    }
  }
  return speed;
}

Speed stated_speed(const PlanRequest& r, double products, double bytes) {
  const int64_t tokens = r.step.batch * r.step.length;
  PlanRequest block = r;
  block.shape = one_block(r.shape);
  block.policy = Policy::preset("off");
  Speed speed = stated_speed(std::vector<std::vector<Work>>{forward_work(step_request(block))[0]},
                             products, bytes);
  speed.head = 2 * static_cast<double>(tokens) *
               static_cast<double>(r.shape.hidden_size * r.shape.vocab_size) / products;
  return speed;
}

double update_seconds(const StepMemory& m, double bytes_per_second) {
  return static_cast<double>(2 * m.weights + m.gradients + 2 * m.optimizer) / bytes_per_second;
}

double step_seconds(const PlanRequest& r, const Speed& speed, const StepMemory& memory) {
  double block = 0;
  for (const double s : speed.segments[0]) block += s;
  const double micro = 3 * (block * static_cast<double>(r.shape.num_hidden_layers) + speed.head);
  return micro * static_cast<double>(r.step.accumulation) +
         update_seconds(memory, speed.bytes_per_second);
}

}  // namespace compact
