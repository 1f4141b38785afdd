// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/attention.h"

#include <gtest/gtest.h>

#include "tests/ops/block.h"

namespace compact {
namespace {

struct Shape {
  int64_t batch, heads, kv_heads, length, dim;
};

// Scores, softmax and sum in double.
at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(1) / k.size(1), s = q.size(2);
  const at::Tensor scores = q.matmul(k.repeat_interleave(group, 1).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor future = at::ones({s, s}, at::kBool).triu(1);
  return scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v.repeat_interleave(group, 1));
}

TEST(Attention, AgreesWithScoresInDouble) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape& s : {Shape{1, 1, 1, 1, 2}, Shape{2, 4, 4, 7, 6}, Shape{2, 4, 2, 33, 8},
                           Shape{1, 6, 1, 130, 10}}) {
      // as a fused product gives them: strided
      const at::Tensor fused =
          noise({s.batch, s.length, s.heads + 2 * s.kv_heads, s.dim}, "qkv", type);
      const auto parts =
          fused.transpose(1, 2).split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 1);
      const at::Tensor gout = noise({s.batch, s.heads, s.length, s.dim}, "g", type);
      const AttentionResult r = attention_forward(parts[0], parts[1], parts[2]);
      EXPECT_TRUE(r.out.transpose(1, 2).is_contiguous());
      EXPECT_EQ(r.extras[0].numel(), s.batch * s.heads * s.length);
      const AttentionGradients g =
          attention_backward(gout, parts[0], parts[1], parts[2], r.out, r.extras);

      std::vector<at::Tensor> leaves;
      for (const at::Tensor& p : parts) leaves.push_back(p.to(at::kDouble).requires_grad_(true));
      const at::Tensor want = plain(leaves[0], leaves[1], leaves[2]);
      want.backward(gout.to(at::kDouble));
      const double allowed = type == at::kFloat ? 2e-6 : 1.5e-2;
      EXPECT_LT(relative_error(r.out, want), allowed);
      EXPECT_LT((g.gv.to(at::kDouble) - leaves[2].grad()).norm().item<double>(),
                allowed * leaves[2].grad().norm().item<double>());
      if (s.length == 1) continue;  // the gradients of q and k are zero
      EXPECT_LT(relative_error(g.gq, leaves[0].grad()), allowed) << s.heads;
      EXPECT_LT(relative_error(g.gk, leaves[1].grad()), allowed) << s.heads;
    }
  }
}

TEST(Attention, NamesItsKernel) {
  EXPECT_EQ(attention_kernel(at::kCPU, at::kFloat), "flash (cpu)");
  EXPECT_EQ(attention_kernel(at::kCUDA, at::kBFloat16), "flash (cuda)");
  EXPECT_EQ(attention_kernel(at::kCUDA, at::kFloat), "efficient (cuda)");
  EXPECT_EQ(attention_kernel(at::kMPS, at::kFloat), "math");
}

}  // namespace
}  // namespace compact
