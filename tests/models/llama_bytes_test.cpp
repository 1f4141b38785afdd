// SPDX-License-Identifier: Apache-2.0
// Exact bytes of a model under the presets.
#include <gtest/gtest.h>

#include <algorithm>

#include "compact/ops/memory/memory.h"
#include "tests/models/tiny_llama.h"

namespace compact {
namespace {

constexpr int64_t kInside = 48;  // m with its padding

int64_t stored(const std::vector<SlotBytes>& rows) {
  int64_t bytes = 0;
  for (const SlotBytes& b : rows) bytes += b.stored;
  return bytes;
}

// Elements of the slots of block `layer` per token, extras not counted.
double elements(const Llama& model, const std::vector<SlotBytes>& rows, int layer) {
  const auto size = static_cast<double>(c10::elementSize(model.options().dtype));
  const std::string prefix = cat("layers.", layer, ".");
  int64_t bytes = 0;
  for (const SlotBytes& b : rows) {
    if (b.name.starts_with(prefix) && !b.name.ends_with("extras")) bytes += b.stored;
  }
  return static_cast<double>(bytes) / size / kTokens;
}

struct PresetCase {
  const char* preset;
  int64_t elements;  // per token and block
};
void PrintTo(const PresetCase& c, std::ostream* out) { *out << c.preset; }
class Bytes : public testing::TestWithParam<std::tuple<PresetCase, at::ScalarType>> {};

TEST_P(Bytes, AreThoseOfTheFormulaAndOfTheAllocator) {
  install_counting_allocator();
  const auto [c, type] = GetParam();
  const Llama model(shape(), policy(c.preset), {.dtype = type, .max_length = 16});
  const at::Tensor x = ids(), y = targets();
  const int64_t before = live_bytes(at::kCPU);
  PassReport report;
  at::Tensor loss = model.loss({x}, y, {}, &report);
  const int64_t held = live_bytes(at::kCPU) - before - 4;
  const std::vector<SlotBytes> rows = report.all_slots();
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(elements(model, rows, layer), c.elements);
  }
  EXPECT_EQ(held, stored(rows));
  EXPECT_EQ(held, report.all_saved_bytes());
  int64_t extras = 0;
  for (const SlotBytes& b : rows) {
    if (b.name.ends_with(".extras")) extras += b.stored;
    EXPECT_LE(b.stored, b.if_kept == 0 ? 0 : std::max(b.stored, b.if_kept));
  }
  EXPECT_EQ(extras,
            kTokens * 4 * (kLayers * (2 + kHeads) + 1));  // rstd twice, logsumexp; final rstd

  loss.backward();
  loss = at::Tensor();
  int64_t gradients = 0;
  for (const Parameter* p : model.parameters()) {
    ASSERT_TRUE(p->leaf().grad().defined()) << p->name;
    gradients += static_cast<int64_t>(p->leaf().grad().nbytes());
    if (p->carrier) {
      const int64_t zeros = p->weight.size(0) * p->padding.columns;
      EXPECT_EQ(p->leaf().grad().numel() * 4, p->weight.numel() - zeros) << p->name;  // r = n / 4
      EXPECT_FALSE(p->weight.grad().defined()) << p->name;
    }
  }
  EXPECT_EQ(live_bytes(at::kCPU) - before, gradients);
}

INSTANTIATE_TEST_SUITE_P(
    Presets, Bytes,
    testing::Combine(
        testing::Values(PresetCase{"off", 8 * n + 4 * kInside},
                        PresetCase{"exact", 6 * n + 2 * kInside}, PresetCase{"recompute", n},
                        PresetCase{"compact", 6 * n + 2 * kInside},
                        PresetCase{"compact-paper", 6 * n + 5 * n / 4 + 3 * kInside + m / 4}),
        testing::Values(at::kFloat, at::kBFloat16)),
    [](const auto& info) {
      std::string name = std::get<0>(info.param).preset;
      std::replace(name.begin(), name.end(), '-', '_');
      return name + "_" + c10::toString(std::get<1>(info.param));
    });

// Neither logits nor another tensor of their size under `exact`.
TEST(LlamaBytes, WholeLogitsNeverExistUnderChunks) {
  install_counting_allocator();
  LlamaConfig c = shape();
  c.vocab_size = 3001;
  const int64_t logits = kTokens * c.vocab_size * 4;
  const auto overhead = [&](const std::string& preset) {
    const Llama model(c,
                      policy(preset, preset == "exact" ? "slot loss.logits = chunk:tokens=1" : ""),
                      {.max_length = 16});
    const at::Tensor x = ids(), y = targets();
    reset_peak(at::kCPU);
    const int64_t before = live_bytes(at::kCPU);
    PassReport report;
    const at::Tensor loss = model.loss({x}, y, {}, &report);
    int64_t results = 0;
    for (const SlotBytes& b : report.slots) {
      if (b.name != "loss.logits" || preset == "exact") results += b.stored;
    }
    return peak_bytes(at::kCPU) - before - results;
  };
  EXPECT_LT(overhead("exact"), logits / 4);
  EXPECT_GE(overhead("off"), 2 * logits);
}

TEST(LlamaBytes, ADroppedGraphLeavesNothingBehind) {
  install_counting_allocator();
  for (const char* preset : {"off", "exact", "recompute", "compact", "compact-paper"}) {
    const Llama model(shape(), policy(preset), {.max_length = 16});
    const at::Tensor x = ids(), y = targets();
    const int64_t before = live_bytes(at::kCPU);
    model.loss({x}, y, {});
    EXPECT_EQ(live_bytes(at::kCPU), before) << preset;
  }
}

}  // namespace
}  // namespace compact
