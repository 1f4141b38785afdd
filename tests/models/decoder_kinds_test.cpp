// SPDX-License-Identifier: Apache-2.0
// Properties of every decoder, with biases, norms of heads, layers without rotary positions and
// multipliers: tests/models/hf_parity.py says that they compute what they should.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "compact/ops/memory/memory.h"
#include "tests/models/tiny_decoder.h"
#include "tests/models/tiny_llama.h"

namespace compact {
namespace {

using testing::HasSubstr;

class DecoderKinds : public testing::TestWithParam<DecoderKind> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderKinds, testing::ValuesIn(decoder_kinds()),
                         [](const auto& info) { return info.param.name; });

// Losses and gradients of three batches; weights move in between.
std::vector<at::Tensor> trained(const LlamaConfig& c, const Policy& p, at::ScalarType type) {
  const Llama model(c, p, {.dtype = type, .max_length = 16, .seed = 3});
  std::vector<at::Tensor> all;
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor loss = loss_of(model, step);
    loss.backward();
    all.push_back(loss.detach());
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : model.parameters()) {
      all.push_back(parameter->weight.grad());
      parameter->weight.sub_(parameter->weight.grad(), 0.5);
      parameter->weight.mutable_grad() = at::Tensor();
    }
  }
  return all;
}

TEST_P(DecoderKinds, GiveTheSameBitsUnderEveryExactTreatment) {
  const LlamaConfig& c = GetParam().config;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> off = trained(c, policy("off"), type);
    for (const at::Tensor& t : off) EXPECT_GT(t.abs().max().item<float>(), 0);
    for (const Policy& p :
         {policy("exact"), policy("recompute"), policy("off", "slot layers.1.* = offload"),
          policy("recompute",
                 "slot layers.1.attn.* = keep\nslot layers.*.mlp.gate_up = keep\n"
                 "slot layers.2.attn.qkv = keep\nslot loss.logits = keep")}) {
      const std::vector<at::Tensor> got = trained(c, p, type);
      ASSERT_EQ(got.size(), off.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], off[i])) << p.str() << "\ntensor " << i;
      }
    }
  }
}

TEST_P(DecoderKinds, StoreWhatTheySay) {
  install_counting_allocator();
  for (const char* preset : {"off", "exact", "recompute", "compact", "compact-paper", "gact-l1"}) {
    const Llama model(GetParam().config, policy(preset), {.max_length = 16});
    const at::Tensor x = ids(), y = targets();
    const int64_t before = live_bytes(at::kCPU);
    PassReport report;
    const at::Tensor loss = model.loss({x}, y, {}, &report);
    EXPECT_EQ(live_bytes(at::kCPU) - before - 4, report.all_saved_bytes()) << preset;
  }
}

// Carriers change what the matrices' gradients are, and nothing of biases and norms.
TEST_P(DecoderKinds, ProjectMatricesAlone) {
  const LlamaConfig& c = GetParam().config;
  const Llama plain(c, policy("off"), {.max_length = 16, .seed = 4});
  const Llama model(c, policy("compact-paper"), {.max_length = 16, .seed = 4});
  loss_of(plain).backward();
  loss_of(model).backward();
  const auto want = plain.parameters(), got = model.parameters();
  ASSERT_EQ(got.size(), want.size());
  int carriers = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i]->decay, got[i]->weight.dim() == 2) << got[i]->name;
    EXPECT_EQ(got[i]->hidden && got[i]->weight.dim() == 1, false) << got[i]->name;
    if (got[i]->carrier) {
      ++carriers;
      continue;
    }
    EXPECT_TRUE(same_bits(got[i]->weight.grad(), want[i]->weight.grad())) << want[i]->name;
  }
  EXPECT_EQ(carriers, 3 * kLayers);
}

// Also positions that are read otherwise in long sequences, of which a row of short ones has none.
TEST_P(DecoderKinds, RowsOfSamplesEqualSamplesAlone) {
  for (const bool dynamic : {false, true}) {
    LlamaConfig c = GetParam().config;
    if (dynamic) c.rope.kind = RopeKind::kDynamic, c.rope.factor = 2, c.max_position_embeddings = 8;
    expect_rows_equal_samples_alone(
        [&](const Policy& p) { return std::make_unique<Llama>(c, p, kTinyOptions); },
        dynamic ? " dynamic" : "");
  }
}

// The tensors are views of the weights.
TEST_P(DecoderKinds, NameEachElementOnce) {
  const Llama model(GetParam().config, policy("compact"), {.max_length = 16});
  std::set<std::string> names;
  int64_t elements = 0;
  for (auto& [name, tensor] : model.named_tensors()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    elements += tensor.numel();
    tensor.fill_(2);
  }
  for (const Parameter* p : model.parameters()) {
    EXPECT_EQ(p->weight.eq(2).sum().item<int64_t>(), p->count()) << p->name;
    EXPECT_EQ(p->weight.eq(0).sum().item<int64_t>(), p->weight.numel() - p->count()) << p->name;
  }
  EXPECT_EQ(elements, model.parameter_count());
  const bool fused = GetParam().config.block.qkv_parts == 1;
  EXPECT_EQ(names.contains("model.layers.1.self_attn.qkv_proj.weight"), fused);
  EXPECT_EQ(names.contains("model.layers.1.self_attn.k_proj.weight"), !fused);
}

TEST(DecoderSlots, OfNormsOfHeadsAreRebuiltFromTheProduct) {
  LlamaConfig c = shape();
  c.block.head_norms = true;
  const Llama model(c, policy("exact"), {.max_length = 16});
  PassReport report;
  loss_of(model, 0, &report).backward();
  // Each block rebuilds 3 tensors as without norms of heads, and 2 more: what is normed, before and
  // after it is turned.
  EXPECT_EQ(*report.rebuilt, kLayers * (3 + 2));
  for (const SlotBytes& row : report.slots) {
    if (row.name.ends_with("attn.heads")) {
      EXPECT_EQ(row.stored, 0) << row.name;
    }
    if (row.name.ends_with("attn.qkv")) {
      EXPECT_EQ(row.stored, kTokens * 3 * n * 4) << row.name;
    }
  }
}

// Tokens before a window change nothing; without a window they do.
TEST(DecoderWindow, HidesWhatLiesBeforeIt) {
  for (const bool first_alone : {false, true}) {
    LlamaConfig c = shape();
    c.num_hidden_layers = 1;
    const auto logits_of_last = [&](int64_t token) {
      at::Tensor all = ids();
      all.select(1, 0).fill_(token);
      return Llama(c, policy("off"), {.max_length = kLength})
          .logits(all)
          .select(1, kLength - 1)
          .contiguous();
    };
    EXPECT_FALSE(same_bits(logits_of_last(1), logits_of_last(2)));
    c.sliding_window = kLength - 1;
    if (first_alone) c.sliding_layers = {true};
    EXPECT_TRUE(same_bits(logits_of_last(1), logits_of_last(2)));
    c.sliding_window = kLength;
    EXPECT_FALSE(same_bits(logits_of_last(1), logits_of_last(2)));
  }
}

}  // namespace
}  // namespace compact
