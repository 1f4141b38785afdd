// SPDX-License-Identifier: Apache-2.0
// Codecs that round groups of neighbours, in decoders narrower than a group.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "compact/models/llama/llama.h"
#include "tests/models/tiny_llama.h"

namespace compact {
namespace {

LlamaConfig narrow(const std::string& type, int64_t width, int64_t kv_heads) {
  const LlamaConfig c{.block = block_shape(width, 3 * width, 4, kv_heads, width / 4),
                      .num_hidden_layers = 2,
                      .vocab_size = 97};
  return type == "olmo2" ? with_olmo2_norms(c) : c;
}

std::map<std::string, at::Tensor> gradients(const LlamaConfig& c, const std::string& lines) {
  const Llama model(c, policy("off", lines), {.max_length = 64});
  const at::Tensor ids = at::arange(4 * 64, at::kLong).mul_(at::arange(4 * 64)).remainder_(97);
  model.loss({ids.view({4, 64})}, ids.roll(-1).view({4, 64}), {.scale = 1.0 / 256, .noise = 5})
      .backward();
  std::map<std::string, at::Tensor> all;
  for (const Parameter* p : model.parameters()) all[p->name] = p->weight.grad().to(at::kDouble);
  return all;
}

// The greatest squared error of a parameter's gradient, as a part of its square.
double error(const LlamaConfig& c, const std::string& lines) {
  const auto got = gradients(c, lines), want = gradients(c, "");
  double worst = 0;
  for (const auto& [name, g] : want) {
    const double e = ((got.at(name) - g).square().sum() / g.square().sum()).item<double>();
    worst = std::max(worst, e);
  }
  return worst;
}

// OLMo 2's values are as small as what it embeds, its queries and keys near 1: rounded by one step
// they would be noise, and gradients off a hundred times over.
TEST(NarrowCodecs, RoundNoValuesByTheStepsOfNormedQueries) {
  for (const int64_t width : {64, 96, 128}) {
    for (const int64_t kv_heads : {4, 2}) {
      for (const int bits : {8, 4}) {
        const std::string every = cat("slot layers.* = quantize:bits=", bits, "\n");
        const double llama = error(narrow("llama", width, kv_heads), every);
        for (const char* rebuilt : {"role:gate", "role:{attention,gate,product}",
                                    "role:{attention,added}", "role:{qkv,attention,added}"}) {
          const double olmo2 = error(narrow("olmo2", width, kv_heads),
                                     cat(every, "slot ", rebuilt, " = recompute\n"));
          EXPECT_LT(olmo2, std::min(10 * llama, 1.0))
              << bits << " bits, width " << width << ", " << kv_heads << ", " << rebuilt;
        }
      }
    }
  }
}

}  // namespace
}  // namespace compact
