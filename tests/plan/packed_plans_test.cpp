// SPDX-License-Identifier: Apache-2.0
// Plans of steps whose rows have several samples.
#include <gtest/gtest.h>

#include "compact/codecs/meta_device.h"
#include "compact/kernels/gpu.h"
#include "compact/models/gemma/gemma.h"
#include "compact/models/gpt2/gpt2.h"
#include "compact/ops/functions/range_attention.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using Ranges = std::vector<std::array<int64_t, 3>>;

// Two rows of 48 tokens, the second with padding.
const Ranges kPacked = {{0, 0, 5}, {0, 5, 31}, {0, 31, 48}, {1, 0, 40}, {1, 40, 41}};
// The same of few lengths, among one another; the last of the longest is not the last.
const Ranges kAlike = {{0, 0, 9},   {0, 9, 12},  {0, 12, 21}, {0, 21, 24}, {0, 24, 33},
                       {0, 33, 36}, {0, 36, 48}, {1, 0, 9},   {1, 10, 19}, {1, 19, 31},
                       {1, 32, 35}, {1, 36, 39}, {1, 40, 43}};

// So many of three tokens, in each row, and the rest of it.
Ranges alike(int64_t count) {
  Ranges ranges;
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t i = 0; i < count; ++i) ranges.push_back({row, 3 * i, 3 * i + 3});
    ranges.push_back({row, 3 * count, 48});
  }
  return ranges;
}

StepRequest with_ranges(const std::function<std::unique_ptr<Network>(at::Device)>& network,
                        const Ranges& ranges) {
  StepRequest r;
  r.network = network;
  r.micro_batch = [ranges](at::Device device, int64_t i) {
    const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
    StepInputs inputs{{at::full({2, 48}, i + 1, ids)}, at::full({2, 48}, i + 2, ids)};
    if (!ranges.empty()) inputs.ranges = ranges_tensor(ranges);
    return inputs;
  };
  r.optimizer = small_request("off", at::kFloat, {}, small_shape()).optimizer({});
  r.step.accumulation = 2;
  return r;
}

std::unique_ptr<Network> llama_at(at::Device device, const Policy& policy, LlamaConfig c,
                                  at::ScalarType type = at::kFloat) {
  return std::make_unique<Llama>(c, policy,
                                 NetworkOptions{.device = device, .dtype = type, .max_length = 48});
}

// Fused attention, chunks of a window's and of capped scores, dropout and learned positions.
TEST(PackedPlans, EqualARealStep) {
  install_counting_allocator();
  for (const char* preset : {"off", "exact", "recompute"}) {
    const Policy policy = Policy::preset(preset);
    LlamaConfig window = small_shape();
    window.sliding_window = 8;
    GemmaConfig capped{.block = gemma_block(false, 64, 100, 4, 2, 16),
                       .num_hidden_layers = 2,
                       .vocab_size = 300,
                       .sliding_window = 9,
                       .sliding_layers = {true, false},
                       .bos_token_id = {},
                       .eos_token_ids = {},
                       .pad_token_id = {}};
    capped.block.softcap = 2;
    Gpt2Config learned{.n_embd = 64, .n_layer = 2, .n_head = 4, .n_inner = 128, .vocab_size = 300};
    learned.n_positions = 48;
    learned.bos_token_id.reset();
    learned.eos_token_ids.clear();
    const NetworkOptions options{.max_length = 48};
    const auto at_device = [&](at::Device device) {
      NetworkOptions o = options;
      o.device = device;
      return o;
    };
    const std::vector<std::function<std::unique_ptr<Network>(at::Device)>> networks = {
        [&](at::Device d) { return llama_at(d, policy, small_shape()); },
        [&](at::Device d) { return llama_at(d, policy, window); },
        [&](at::Device d) { return std::make_unique<Gemma>(capped, policy, at_device(d)); },
        [&](at::Device d) { return std::make_unique<Gpt2>(learned, policy, at_device(d)); }};
    for (size_t i = 0; i < networks.size(); ++i) {
      // Plans leave sums over the batch and scalars out of moments below the peak.
      std::vector<int64_t> left_out;
      for (const Ranges& ranges : {kPacked, kAlike, alike(12)}) {
        const StepRequest r = with_ranges(networks[i], ranges);
        const StepMemory plan = plan_step(r).memory, real = run_for_real(r);
        const std::string text =
            cat(preset, " network ", i, ", ", ranges.size(), " ranges, real in ",
                str(real.at_peak.moment), ", planned in ", str(plan.at_peak.moment));
        expect_equal_parts(plan, real, text);
        EXPECT_EQ(plan.peak, real.peak) << text;
        std::vector<int64_t> beyond;
        for (const auto& [moment, bytes] : real.moments) beyond.push_back(bytes - plan.at(moment));
        if (left_out.empty()) left_out = beyond;  // of ranges that are all unlike
        EXPECT_EQ(beyond, left_out) << text;
      }
    }
  }
}

int64_t extras_of(const StepMemory& m) {
  int64_t bytes = 0;
  for (const SlotBytes& s : m.slots) {
    if (s.name == "layers.0.extras") bytes += s.stored;
  }
  return bytes;
}

// A GPU's kernel in f32 has sums of a head for every 32 tokens begun, and two numbers, of each
// range.
TEST(PackedPlans, OfAGpuCountRanges) {
  const kernels::Gpu before = kernels::planned_gpu();
  prepare_meta(c10::kCUDA);
  const auto extras = [](const Ranges& ranges) {
    StepRequest r = with_ranges(
        [](at::Device d) { return llama_at(d, Policy::preset("off"), small_shape()); }, ranges);
    r.device = c10::kCUDA;
    return extras_of(plan_step(r).memory);
  };
  const int64_t rows = extras({}), packed = extras(kPacked);
  const int64_t heads = 4;
  EXPECT_EQ(packed - rows,
            (4 * heads * 32 * (1 + 1 + 1 + 2 + 1) + 5 * 16) - (2 * 4 * heads * 64 + 16));
  const auto of_each = static_cast<int64_t>(kAlike.size());
  EXPECT_EQ(extras(kAlike) - rows, of_each * (4 * heads * 32 + 16) - (2 * 4 * heads * 64 + 16));
  set_meta_device(c10::kCPU);
  kernels::set_planned_gpu(before);
}

// Launches, products and bytes of ranges of one length are those of one, so many times; what a plan
// runs for them is the same however many there are.
TEST(PackedPlans, CountAlikeRangesTogether) {
  struct Counts {
    size_t operations = 0;
    double launches = 0, products = 0;
  };
  const auto counts = [](c10::DeviceType device, const Ranges& ranges) {
    StepRequest r = with_ranges(
        [](at::Device d) { return llama_at(d, Policy::preset("recompute"), small_shape()); },
        ranges);
    r.device = device;
    std::vector<Operation> operations;
    plan_step(r, &operations);
    Counts all{.operations = operations.size()};
    for (const Operation& o : operations) {
      all.launches += static_cast<double>(o.launches);
      all.products += o.products;
    }
    return all;
  };
  const kernels::Gpu before = kernels::planned_gpu();
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    const auto of = [&](int64_t in_first_row) {  // of three tokens; and some of another length
      Ranges ranges = {{1, 0, 10}, {1, 10, 20}};
      for (int64_t i = in_first_row; i > 0; --i) {
        ranges.insert(ranges.begin(), {0, 3 * i - 3, 3 * i});
      }
      return counts(device, ranges);
    };
    const Counts one = of(1), two = of(2), many = of(15);
    EXPECT_GT(two.launches, one.launches);
    EXPECT_EQ(many.launches - two.launches, 13 * (two.launches - one.launches));
    EXPECT_GT(two.products, one.products);
    EXPECT_EQ(many.products - two.products, 13 * (two.products - one.products));
    EXPECT_EQ(many.operations, of(9).operations);
  }
  set_meta_device(c10::kCPU);
  kernels::set_planned_gpu(before);
}

// Scores are of ranges, not of rows.
TEST(PackedPlans, TimeOfAttentionIsThatOfRanges) {
  const auto products = [](const Ranges& ranges) {
    const StepRequest r = with_ranges(
        [](at::Device d) { return llama_at(d, Policy::preset("off"), small_shape()); }, ranges);
    const SegmentGroups groups(r);
    double all = 0;
    for (const Work& w : groups.segments()[0].work) all += w.products;
    return all;
  };
  const double rows = products({{0, 0, 48}, {1, 0, 48}});
  EXPECT_DOUBLE_EQ(rows, products({}));
  const double fewer = 2 * 64 * (2 * 48 * 48 - (25 + 26 * 26 + 17 * 17 + 40 * 40 + 1));
  EXPECT_DOUBLE_EQ(rows - products(kPacked), fewer);
}

}  // namespace
}  // namespace compact
