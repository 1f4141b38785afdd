// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/functions/token_cache.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

// Turns rows x, tokens of sequences of `length` that begin at position `offset` of the tables.
void turn(const at::Tensor& x, const RopeAngles& tables, int64_t heads, int64_t dim, int64_t offset,
          int64_t length, bool inverse) {
  check_like("rope", x, {{"cosines", tables.cos}, {"sines", tables.sin}}, at::kFloat);
  COMPACT_CHECK(x.is_contiguous(), "[rope] rows must be contiguous, are ", x.sizes(),
                " with strides ", x.strides());
  COMPACT_CHECK(tables.cos.dim() == 2 && tables.cos.sizes() == tables.sin.sizes() &&
                    tables.cos.is_contiguous() && tables.sin.is_contiguous(),
                "[rope] cosines and sines must be contiguous [length, width / 2] alike, are ",
                tables.cos.sizes(), " with strides ", tables.cos.strides(), " and ",
                tables.sin.sizes(), " with strides ", tables.sin.strides());
  const int64_t half = tables.cos.size(1);
  COMPACT_CHECK(x.size(-1) >= heads * dim && half <= dim / 2 && offset >= 0 &&
                    offset + length <= tables.cos.size(0),
                "[rope] positions up to ", offset + length, " of ", heads, " heads of ", dim,
                " in rows of ", x.size(-1), ", with tables ", tables.cos.sizes());
  const auto from = [&](const at::Tensor& table) {
    return static_cast<const float*>(table.const_data_ptr()) + offset * half;
  };
  backend_of(x).rope({.x = x.data_ptr(),
                      .cos = from(tables.cos),
                      .sin = from(tables.sin),
                      .tokens = x.numel() / x.size(-1),
                      .length = length,
                      .heads = heads,
                      .dim = 2 * half,
                      .head_stride = dim,
                      .row_stride = x.size(-1),
                      .inverse = inverse,
                      .type = type_of(x)},
                     launch_for(x));
}

class RopeStage final : public Stage {
 public:
  RopeStage(std::shared_ptr<const RopeTables> tables, int64_t heads, int64_t dim)
      : tables_(std::move(tables)), heads_(heads), dim_(dim) {}

  Needs needs() const override { return {}; }
  // Only the part that is rotated is read and written.
  Work work(const at::Tensor& input, const at::Tensor&, Weights, const Pass&) const override {
    const auto part = static_cast<double>(heads_ * dim_) / static_cast<double>(input.size(-1));
    return {.bytes = 2 * static_cast<double>(input.nbytes()) * part};
  }

  std::shared_ptr<const Stage> stand_in() const override {
    if (!tables_) return nullptr;
    const auto angles = [](const RopeAngles& a) {
      return RopeAngles{numbers_like(a.cos), numbers_like(a.sin)};
    };
    const RopeTables there{angles(tables_->near), angles(tables_->far), tables_->limit};
    return std::make_shared<RopeStage>(std::make_shared<const RopeTables>(there), heads_, dim_);
  }

  at::Tensor forward(Forward& f) const override {
    const int64_t first = f.pass.cache ? f.pass.cache->length() : 0;
    return rotate(std::move(f.input), f.overwrite, false, first, f.pass);
  }
  at::Tensor backward(Backward& b) const override {
    const bool own = owned(b.gy);
    at::Tensor gx = rotate(std::move(b.gy), own, true, 0, b.pass);
    return b.plus_residual(gx);
  }

 private:
  // x [batch, sequence, width], of positions from `first` on
  at::Tensor rotate(at::Tensor x, bool in_place, bool inverse, int64_t first,
                    const Pass& pass) const {
    at::Tensor y = in_place && x.is_contiguous() ? x : x.clone(at::MemoryFormat::Contiguous);
    const int64_t length = y.size(-2);
    if (y.numel() == 0) return y;
    if (tables_ && pass.ranges.defined()) {
      for_ranges(pass.ranges, y, [&](const at::Tensor& of_one, int64_t own) {
        turn(of_one, tables_->for_length(own), heads_, dim_, 0, own, inverse);
      });
      return y;
    }
    if (tables_) {
      turn(y, tables_->for_length(first + length), heads_, dim_, first, length, inverse);
      return y;
    }
    COMPACT_CHECK(pass.cos.defined() && pass.sin.defined(),
                  "[rope] a stage without tables needs cosines and sines at every pass");
    const int64_t tokens = y.numel() / y.size(-1);
    const bool of_all = pass.cos.size(0) == tokens;  // each token's own
    turn(y, {pass.cos, pass.sin}, heads_, dim_, first, of_all ? tokens : length, inverse);
    return y;
  }

  std::shared_ptr<const RopeTables> tables_;
  int64_t heads_, dim_;
};

}  // namespace

std::shared_ptr<const Stage> rope_stage(std::shared_ptr<const RopeTables> tables, int64_t heads,
                                        int64_t dim) {
  return std::make_shared<RopeStage>(std::move(tables), heads, dim);
}

}  // namespace compact
