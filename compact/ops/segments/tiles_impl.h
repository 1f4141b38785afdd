// SPDX-License-Identifier: Apache-2.0
// Steps of a segment that run on some tokens at a time, in both directions. The rows of the last
// dimension are the tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/ops/segments/recipe.h"

namespace compact {

// The number of tiles that x has.
int64_t count_tiles(const Recipe::Tiles& tiles, const at::Tensor& x);
// Whether steps that read x run by tiles: it has more than one.
bool runs_by_tiles(const Recipe::Tiles* tiles, const at::Tensor& x);
// The forward pass: what the last of the steps makes of the tensor that the first one reads. Where
// given, the bytes that each tensor would have are added to `if_kept`, and those of side outputs to
// `sides_if_kept`. `pass` has the segment's noise.
at::Tensor run_tiles(const Recipe& recipe, const Recipe::Tiles& tiles, const Tensors& t,
                     Weights weights, const SegmentPass& pass,
                     std::vector<int64_t>* if_kept = nullptr,
                     std::vector<int64_t>* sides_if_kept = nullptr);

struct TilesBack {
  at::Tensor gy;        // gradient of what the last step made
  at::Tensor residual;  // where defined: to be added to the result, in its memory where that can be
  FunctionRef<at::Tensor()> input;  // gives what the first step reads; called where that is needed
  Weights weights;                  // of all steps of the segment
  SegmentPass pass;                 // noise: of the segment
  const Wanted& wanted;
  const std::vector<bool>& made;      // of which tensors a gradient is made
  std::span<at::Tensor> gparameters;  // result: one per parameter of the segment
};
// Rebuilds what lies between the steps, a tile at a time, and gives the gradient of the input;
// undefined where it is not made. Gradients of parameters are summed in f32. `rebuilt`: is raised
// by the number of tensors.
at::Tensor run_tiles_back(const Recipe& recipe, const Recipe::Tiles& tiles, TilesBack b,
                          int64_t& rebuilt);

}  // namespace compact
