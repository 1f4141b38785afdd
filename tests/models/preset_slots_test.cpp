// SPDX-License-Identifier: Apache-2.0
// preset_slots.txt has what every preset does to every slot of a small network of each family.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/models/encoder/encoder.h"
#include "compact/models/gemma/gemma.h"
#include "compact/models/gpt2/gpt2.h"
#include "compact/models/graph/graph_network.h"
#include "compact/models/llama/llama.h"
#include "compact/models/resnet/resnet.h"
#include "compact/models/vit/vit.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

struct SmallNetwork {
  std::string name;
  std::function<std::unique_ptr<Network>(const Policy&)> make;
  Tensors inputs;
  at::Tensor target;
};

SmallNetwork small_llama(const std::string& name = "llama",
                         const std::function<void(LlamaConfig&)>& change = {}) {
  LlamaConfig c{.block = block_shape(32, 48, 4, 4, 8), .num_hidden_layers = 2, .vocab_size = 61};
  if (change) change(c);
  const at::Tensor ids = at::arange(16, at::kLong).view({2, 8});
  return {name,
          [c](const Policy& p) { return std::make_unique<Llama>(c, p, NetworkOptions{}); },
          {ids},
          ids.roll(-1, 1)};
}

// With what some decoders have more: biases, norms of heads.
SmallNetwork small_qwen() {
  return small_llama("llama, norms of heads", [](LlamaConfig& c) {
    c.block.kv_heads = 2, c.block.qkv_bias = c.block.head_norms = true;
  });
}

// Norms after the halves alone, of queries and keys over the whole width.
SmallNetwork small_olmo() {
  return small_llama("olmo2", [](LlamaConfig& c) {
    c.model_type = "olmo2", c.block.pre_norms = false;
    c.block.post_norms = c.block.head_norms = c.block.whole_norms = true;
  });
}

// A network made from its family's own configuration.
template <class Net, class Config>
SmallNetwork small_of(const std::string& name, const Config& c, Tensors inputs, at::Tensor target) {
  return {name, [c](const Policy& p) { return std::make_unique<Net>(c, p, NetworkOptions{}); },
          std::move(inputs), std::move(target)};
}

SmallNetwork small_gemma(bool third) {
  const SmallNetwork llama = small_llama();
  GemmaConfig c{.block = gemma_block(third, 32, 48, 4, 2, 8),
                .num_hidden_layers = 2,
                .vocab_size = 61,
                .sliding_window = 5,
                .sliding_layers = {true, false},
                .bos_token_id = {},
                .eos_token_ids = {},
                .pad_token_id = {}};
  if (!third) c.block.softcap = c.final_logit_softcapping = 3;
  return small_of<Gemma>(third ? "gemma 3" : "gemma 2", c, llama.inputs, llama.target);
}

SmallNetwork small_gpt2() {
  const SmallNetwork llama = small_llama();
  const Gpt2Config c{.n_embd = 32,
                     .n_layer = 2,
                     .n_head = 4,
                     .n_inner = 48,
                     .vocab_size = 61,
                     .n_positions = 2048,
                     .bos_token_id = {},
                     .eos_token_ids = {}};
  return small_of<Gpt2>("gpt2", c, llama.inputs, llama.target);
}

SmallNetwork small_vit() {
  const VitConfig c{.hidden_size = 32,
                    .intermediate_size = 48,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 4,
                    .height = 16,
                    .width = 16,
                    .patch_size = 4,
                    .classes = 5};
  return small_of<Vit>("vit", c, {at::randn({64, 3, 16, 16}, at::detail::createCPUGenerator(1))},
                       at::arange(64).remainder(5));
}

// RoBERTa without dropout.
SmallNetwork small_encoder_of(EncoderKind kind) {
  const bool bert = kind == EncoderKind::kBert;
  EncoderConfig c;
  c.kind = kind;
  c.hidden_size = 32, c.intermediate_size = 48, c.num_hidden_layers = 2, c.vocab_size = 50;
  c.num_attention_heads = 4, c.max_position_embeddings = 16, c.labels = {"a", "b"};
  if (!bert) c.pad_token_id = 1, c.hidden_dropout = c.attention_dropout = 0;
  const at::Tensor ids = at::arange(2, 2 + 32 * 4, at::kLong).remainder_(48).add_(2).view({32, 4});
  return {bert ? "bert" : "roberta",
          [c](const Policy& p) { return std::make_unique<Encoder>(c, p, NetworkOptions{}); },
          {ids, at::zeros_like(ids), at::full({32}, 4, at::kLong)},
          at::arange(32).remainder(2)};
}

SmallNetwork small_resnet(const std::string& name, const ResnetConfig& c) {
  return {name,
          [c](const Policy& p) { return std::make_unique<Resnet>(c, p, NetworkOptions{}); },
          {at::randn({64, 3, 16, 16}, at::detail::createCPUGenerator(1))},
          at::arange(64).remainder(5)};
}

SmallNetwork small_graph_network(const std::string& name, GraphLayerKind kind, bool whole) {
  constexpr int64_t kNodes = 64;
  const GraphNetConfig c{
      .kind = kind, .features = 32, .classes = 4, .hidden = 32, .whole_graphs = whole};
  const at::Tensor from = at::arange(kNodes).repeat_interleave(16);
  const at::Tensor to = at::arange(kNodes * 16).add(from).remainder(kNodes);
  at::Tensor a = at::zeros({kNodes, kNodes});
  a.index_put_({from, to}, at::ones({1})).fill_diagonal_(0);
  Tensors inputs = {at::randn({kNodes, 32}, at::detail::createCPUGenerator(2)),
                    a.maximum(a.t()).nonzero().t().contiguous()};
  if (whole) {
    inputs.push_back(at::arange(kNodes).floor_divide(2));
    inputs.push_back(at::full({kNodes / 2, 1}, 2.0));
  }
  return {name,
          [c](const Policy& p) { return std::make_unique<GraphNetwork>(c, p, NetworkOptions{}); },
          std::move(inputs), at::arange(whole ? kNodes / 2 : kNodes).remainder(4)};
}

std::vector<SmallNetwork> networks() {
  return {small_llama(),
          small_qwen(),
          small_olmo(),
          small_gemma(false),
          small_gemma(true),
          small_gpt2(),
          small_vit(),
          small_encoder_of(EncoderKind::kBert),
          small_encoder_of(EncoderKind::kRoberta),
          small_resnet("resnet, small images",
                       {.blocks = {2, 2}, .width = 16, .small_images = true, .classes = 5}),
          small_resnet("resnet, basic blocks", {.blocks = {1, 2}, .width = 8, .classes = 5}),
          small_resnet("resnet, bottlenecks",
                       {.blocks = {2, 1}, .width = 4, .bottleneck = true, .classes = 5}),
          small_graph_network("gcn", GraphLayerKind::kConvolution, false),
          small_graph_network("gat", GraphLayerKind::kAttention, false),
          small_graph_network("graphsage", GraphLayerKind::kSample, false),
          small_graph_network("gcn, whole graphs", GraphLayerKind::kConvolution, true)};
}

// One line for each treatment with the slots that have it; of plain operations the parameters that
// they are named after. Without `bits`, bits and offload are left out.
std::string described(const SmallNetwork& small, const Policy& policy, bool bits = true) {
  static const std::regex kBits("bits=[0-9]+(,adapt=[0-9]+)?|[+]offload");
  std::map<std::string, std::vector<std::string>> names;  // by treatment
  const auto add = [&](const std::string& treatment, const std::string& name) {
    auto& of = names[bits ? treatment : std::regex_replace(treatment, kBits, "")];
    if (std::ranges::find(of, name) == of.end()) of.push_back(name);
  };
  try {
    const std::unique_ptr<Network> network = small.make(policy);
    PassReport report;
    network->loss(small.inputs, small.target, {.noise = 3}, &report);
    for (const SlotBytes& slot : report.slots) add(slot.treatment, slot.name);
    report.slots.clear();
    for (const SlotBytes& plain : report.all_slots()) {
      add(plain.treatment, "~" + plain.name.substr(0, plain.name.find_first_of(".~")));
    }
    for (const Parameter* p : network->parameters()) {
      if (p->carrier) add(cat("project ", p->carrier->type, " ", p->carrier->rank), p->name);
      if (p->lr_scale != 1) add(cat("lr_scale ", p->lr_scale), p->name);
    }
  } catch (const InputError& e) {
    const std::string text = e.what();  // preset NAME:LINE: what is wrong
    return "refused" + (text.starts_with("preset ") ? text.substr(text.find(": ")) : ": " + text) +
           "\n";
  }
  std::string out;
  for (const auto& [treatment, of] : names) {
    out += treatment + ":";
    for (const std::string& name : of) out += " " + name;
    out += "\n";
  }
  return out;
}

TEST(PresetSlots, AreTreatedAsTheyAlwaysWere) {
  // Two networks show the bits of GACT's presets; otherwise these are as gact-l1.
  const std::set<std::string> shown = {"llama", "resnet, small images"};
  std::string got;
  for (const EmbeddedPreset& preset : embedded_presets()) {
    const bool as_another = preset.name.starts_with("gact-") && preset.name != "gact-l1";
    for (const SmallNetwork& small : networks()) {
      if (as_another) {
        EXPECT_EQ(described(small, Policy::preset(preset.name), false),
                  described(small, Policy::preset("gact-l1"), false))
            << preset.name << ", " << small.name;
        if (!shown.contains(small.name)) continue;
      }
      got += cat("\n== ", preset.name, ", ", small.name, "\n",
                 described(small, Policy::preset(preset.name)));
    }
  }
  const std::string expected =
      read_text(COMPACT_SOURCE_DIR "/tests/models/preset_slots.txt", 1 << 20);
  if (got == expected) return;
  const std::string path = testing::TempDir() + "preset_slots.txt";
  std::ofstream(path) << got;
  FAIL() << "differs from tests/models/preset_slots.txt: see " << path;
}

// Policies of stored runs name slots.
TEST(PresetSlots, AreTheSameByName) {
  const std::pair<const char*, const char*> all[] = {
      {"exact",
       "slot * = keep\n"
       "slot layers.*.{attn,mlp}.norm = recompute\n"
       "slot layers.*.attn.heads = recompute\n"
       "slot layers.*.mlp.{silu,product,gelu} = recompute\n"
       "slot loss.logits = chunk\n"
       "slot layer{1,2,3,4}.*.relu* = recompute\n"
       "slot {stem.relu,average.input} = mask:of=sign\n"},
      {"gact-l2.1",
       "slot * = quantize:bits=4,adapt=3\n"
       "slot {fc,head,classifier,linear}.* = keep\n"
       "slot final.norm = keep\n"
       "slot layers.*.attn.out = recompute\n"
       "slot layers.*.attn.qkv = quantize:bits=8\n"
       "slot layers.*.{attn,mlp}.norm = recompute\n"
       "slot layers.*.attn.heads = recompute\n"
       "slot {layers.*.*.input,final.input} = quantize:bits=8,adapt=6\n"
       "slot layers.*.mlp.{silu,product,gelu} = recompute\n"
       "slot loss.logits = chunk\n"},
      {"pool-quant",
       "slot layer{1,2,3,4}.*.{conv*,downsample} = quantize:bits=4\n"
       "slot stem.conv = quantize:bits=4\n"
       "slot layer{1,2,3,4}.*.{input,relu*} = pool:size=2+quantize:bits=4\n"
       "slot {stem.relu,average.input} = mask:of=sign\n"}};
  for (const auto& [preset, lines] : all) {
    Policy by_name = Policy::parse(lines, "preset by name");
    by_name.make_general();
    for (const SmallNetwork& small : networks()) {
      EXPECT_EQ(described(small, by_name), described(small, Policy::preset(preset)))
          << preset << ", " << small.name;
    }
  }
}

// A copy holds for all networks that the preset is for, with whatever bits a budget leaves it.
TEST(PresetSlots, AreThoseOfACopy) {
  const TemporaryFolder folder;
  for (const EmbeddedPreset& preset : embedded_presets()) {
    const std::string file = (folder / "copy.policy").string();
    std::ofstream(file) << preset.text;
    for (const SmallNetwork& small : networks()) {
      const auto treated = [&](const Policy& policy) {
        const std::string text = described(small, policy);
        return text.starts_with("refused") ? text.substr(text.rfind(": ")) : text;  // without place
      };
      Policy own = Policy::preset(preset.name), copy = Policy::from_file(file);
      do {
        EXPECT_EQ(treated(copy), treated(own)) << preset.name << ", " << small.name;
      } while (own.halve_bits() && copy.halve_bits());
    }
  }
}

TEST(PresetSlots, EverySlotHasARole) {
  // Roles of what no segment holds.
  std::set<Role> seen = {Role::kHead, Role::kLogits, Role::kCheap, Role::kHeavy};
  for (const SmallNetwork& small : networks()) {
    const std::unique_ptr<Network> network = small.make(Policy());
    for (const Segment* segment : network->segments()) {
      for (const SlotUse& use : segment->uses()) {
        EXPECT_NE(use.role, Role::kNone) << use.name;
        seen.insert(use.role);
      }
    }
  }
  EXPECT_EQ(seen.size(), roles().size());
}

TEST(PresetSlots, ARoleOfAnotherNetworkIsRefused) {
  const auto error = [](const SmallNetwork& small, const char* line) {
    return described(small, Policy::parse(line, "--set"));
  };
  EXPECT_EQ(error(small_llama(), "slot role:map = offload"),
            "refused: --set:1: pattern `role:map` matches no slot of this model; its roles: input "
            "norm qkv attention residual gate_up gate product head logits\n");
  EXPECT_EQ(error(small_encoder_of(EncoderKind::kBert), "slot role:gate = offload"),
            "refused: --set:1: pattern `role:gate` matches no slot of this model; its roles: input "
            "norm qkv attention residual pre_activation activation\n");
  EXPECT_EQ(error(small_graph_network("gcn", GraphLayerKind::kConvolution, false),
                  "slot role:norm = offload"),
            "refused: --set:1: pattern `role:norm` matches no slot of this model; its roles: "
            "none\n");
  EXPECT_TRUE(error(small_llama(), "slot role:attention = offload")
                  .find("\noffload: layers.0.attn.out layers.1.attn.out\n") != std::string::npos);
}

}  // namespace
}  // namespace compact
