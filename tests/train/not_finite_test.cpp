// SPDX-License-Identifier: Apache-2.0
// The messages of a run that ends because something was not finite.
#include "compact/train/not_finite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace compact {
namespace {

TEST(NotFinite, NamesWeightsAndWhatHelps) {
  Parameter small{.name = "layers.0.mlp.up", .weight = at::full({2, 3}, 0.5)},
      large{.name = "layers.1.mlp.up", .weight = at::full({2, 3}, -3e10)},
      none{.name = "layers.2.mlp.up", .weight = at::zeros({0, 3})};
  const Optimizer optimizer({&small, &large, &none}, {});
  TrainConfig c;
  c.learning_rate = 0.25;
  c.warmup_steps = 0;
  EXPECT_EQ(about_not_finite(c, 1, optimizer),
            "; all trained weights are finite, the largest is 3e+10 in layers.1.mlp.up; what "
            "helps: a lower --learning_rate than 0.25, --warmup_steps, of which there are none");

  large.weight[1][2] = NAN;
  c.warmup_steps = 20;
  c.max_grad_norm = 0;
  c.dtype = "bfloat16";
  EXPECT_EQ(about_not_finite(c, 1, optimizer),
            "; weights of layers.1.mlp.up are not finite; what helps: a lower --learning_rate than "
            "0.25, more --warmup_steps than 20, --max_grad_norm 1, since nothing is clipped, "
            "--master_weights true");

  small.release = true;  // before clipping could be
  c.master_weights = true;
  c.zero = 3;
  EXPECT_EQ(about_not_finite(c, 2, optimizer),
            "; what helps: a lower --learning_rate than 0.25, more --warmup_steps than 20");
}

}  // namespace
}  // namespace compact
