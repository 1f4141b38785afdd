// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segments/tiles_impl.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "compact/base/philox.h"
#include "compact/ops/autograd/autograd.h"

namespace compact {
namespace {

int64_t tokens_of(const at::Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

at::Tensor token_rows(const at::Tensor& x) { return x.reshape({tokens_of(x), x.size(-1)}); }

// [tokens, width] in the shape of `sizes`, but for its last one.
at::Tensor in_shape(const at::Tensor& rows, std::vector<int64_t> sizes) {
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

// The arguments of a step in a tile, with random bits of their own.
SegmentPass of_tile(SegmentPass pass, int step, int64_t first) {
  pass.noise =
      derive(derive(pass.noise, static_cast<uint64_t>(step)), static_cast<uint64_t>(first));
  return pass;
}

// Calls visit(first token, how many) for every tile.
template <class F>
void each_tile(int64_t tokens, int64_t most, const F& visit) {
  for (int64_t first = 0; first < tokens; first += most) {
    visit(first, std::min(most, tokens - first));
  }
}

// Writes a tile of a result [tokens, width], whose memory is made at the first one if it is not
// there.
void put_tile(at::Tensor& whole, const at::Tensor& tile, int64_t tokens, int64_t first) {
  if (!whole.defined() || whole.scalar_type() != tile.scalar_type()) {
    whole = at::empty({tokens, tile.size(1)}, tile.options());
  }
  whole.narrow(0, first, tile.size(0)).copy_(tile);
}

// The gradient of a parameter, summed over tiles in f32.
class GradientSum {
 public:
  void add(const at::Tensor& g) {
    if (!g.defined()) return;
    type_ = g.scalar_type();
    // An explicit cast: add_ would cast by itself on the CPU, unseen by plans, and not elsewhere.
    const at::Tensor same = g.to(at::kFloat);
    if (sum_.defined()) {
      sum_.add_(same);
    } else {
      sum_ = same;
    }
  }
  at::Tensor value() const { return sum_.defined() ? sum_.to(type_) : sum_; }

 private:
  at::ScalarType type_ = at::kFloat;
  at::Tensor sum_;
};

}  // namespace

int64_t count_tiles(const Recipe::Tiles& tiles, const at::Tensor& x) {
  const int64_t tokens = tokens_of(x);
  return tokens / tiles.tokens + (tokens % tiles.tokens > 0);
}

bool runs_by_tiles(const Recipe::Tiles* tiles, const at::Tensor& x) {
  return tiles && count_tiles(*tiles, x) > 1;
}

at::Tensor run_tiles(const Recipe& recipe, const Recipe::Tiles& tiles, const Tensors& t,
                     Weights weights, const SegmentPass& pass, std::vector<int64_t>* if_kept,
                     std::vector<int64_t>* sides_if_kept) {
  const auto input = static_cast<size_t>(recipe.steps[static_cast<size_t>(tiles.first)].input);
  const at::Tensor x = token_rows(t[input]);
  at::Tensor y;
  each_tile(x.size(0), tiles.tokens, [&](int64_t first, int64_t count) {
    Tensors local(t.size());
    local[input] = x.narrow(0, first, count);
    for (int i = tiles.first; i <= tiles.last; ++i) {
      const auto place = static_cast<size_t>(i);
      const Recipe::Step& step = recipe.steps[place];
      Stage::Forward f;
      f.pass = of_tile(pass, i, first);
      at::Tensor made = recipe.run(place, local, weights, f);
      local[static_cast<size_t>(step.input)] = at::Tensor();
      if (if_kept) (*if_kept)[place + 1] += static_cast<int64_t>(made.nbytes());
      if (sides_if_kept && !step.side.name.empty()) {
        (*sides_if_kept)[place] += tokens_of(made) * step.side.width * made.element_size();
      }
      local[place + 1] = std::move(made);
    }
    put_tile(y, local[static_cast<size_t>(tiles.last) + 1], x.size(0), first);
  });
  return in_shape(y, t[input].sizes().vec());
}

at::Tensor run_tiles_back(const Recipe& recipe, const Recipe::Tiles& tiles, TilesBack b,
                          int64_t& rebuilt) {
  const auto step_of = [&](int i) -> const Recipe::Step& {
    return recipe.steps[static_cast<size_t>(i)];
  };
  const auto made = [&](int tensor) { return b.made[static_cast<size_t>(tensor)]; };
  // The steps from `lowest` run backward; those before `again` run again.
  int lowest = tiles.last, again = tiles.first;
  while (lowest > tiles.first && made(lowest)) --lowest;
  for (int i = lowest; i <= tiles.last; ++i) {
    const Recipe::Step& step = step_of(i);
    if (i > tiles.first && step.reads_input(b.wanted)) again = i;
    if (step.stage->leaves_extras() || step.stage->needs().output) again = i + 1;
  }
  rebuilt += again - tiles.first;
  const int input = step_of(tiles.first).input;
  const bool want_input = lowest == tiles.first && made(input);
  const int64_t tokens = tokens_of(b.gy);
  std::vector<int64_t> sizes = b.gy.sizes().vec();
  at::Tensor x, gy, residual, gx;
  const bool reads = lowest == tiles.first && step_of(lowest).reads_input(b.wanted);
  if (reads || again > tiles.first) x = token_rows(b.input());
  // A sum gives both its terms one tensor, of which each tile is read before it is written.
  const bool same = b.residual.defined() && b.residual.is_same(b.gy);
  if (!same) gy = token_rows(b.gy);
  b.gy = at::Tensor();
  if (b.residual.defined()) {
    const bool own = owned(b.residual);
    residual = token_rows(std::exchange(b.residual, {}));
    if (same) gy = residual;
    if (own) gx = residual;
  }
  std::vector<GradientSum> sums(b.gparameters.size());
  each_tile(tokens, tiles.tokens, [&](int64_t first, int64_t count) {
    Tensors local(b.made.size());
    std::vector<Tensors> extras(recipe.steps.size());
    if (x.defined()) local[static_cast<size_t>(input)] = x.narrow(0, first, count);
    for (int i = tiles.first; i < again; ++i) {
      const auto place = static_cast<size_t>(i);
      Stage::Forward f;
      f.want_extras = true;
      f.pass = of_tile(b.pass, i, first);
      local[place + 1] = recipe.run(place, local, b.weights, f);
      extras[place] = std::move(f.extras);
    }
    at::Tensor g = gy.narrow(0, first, count);
    for (int i = tiles.last; i >= lowest; --i) {
      const Recipe::Step& step = step_of(i);
      const auto from = static_cast<size_t>(step.input), to = static_cast<size_t>(i) + 1;
      Stage::Backward back = recipe.backward_of(i, b.wanted, b.made, b.weights);
      if (step.stage->needs().output) back.output = std::move(local[to]);
      local[to] = at::Tensor();
      if (step.reads_input(b.wanted)) {
        back.consume = i > tiles.first && !step_of(i - 1).stage->needs().output;
        back.input = back.consume ? std::move(local[from]) : local[from];
      }
      back.gy = std::move(g);
      if (i == tiles.first && residual.defined()) back.residual = residual.narrow(0, first, count);
      back.extras = &extras[to - 1];
      back.pass = of_tile(b.pass, i, first);
      g = step.stage->backward(back);
      for (int k = 0; k < step.parameters; ++k) {
        sums[static_cast<size_t>(step.first_parameter + k)].add(
            back.gparameters[static_cast<size_t>(k)]);
      }
    }
    if (want_input) put_tile(gx, g, tokens, first);
  });
  for (int i = lowest; i <= tiles.last; ++i) {
    for (int k = 0; k < step_of(i).parameters; ++k) {
      const auto parameter = static_cast<size_t>(step_of(i).first_parameter + k);
      b.gparameters[parameter] = std::exchange(sums[parameter], {}).value();
    }
  }
  return want_input ? in_shape(gx, std::move(sizes)) : at::Tensor();
}

}  // namespace compact
