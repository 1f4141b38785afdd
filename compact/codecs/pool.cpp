// SPDX-License-Identifier: Apache-2.0
// `pool`: means over square windows of maps, in place of the maps.
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "compact/base/check.h"
#include "compact/codecs/codec_types_impl.h"

namespace compact {
namespace {

class Pool final : public Codec {
 public:
  explicit Pool(Windows windows) : windows_(windows) {}

  bool takes(const at::Tensor& x) const override {
    const at::ScalarType t = x.scalar_type();
    return (t == at::kFloat || t == at::kBFloat16 || t == at::kHalf) && x.dim() >= 3 &&
           x.dim() <= 5 && x.numel() > 0;
  }

  Encoded encode(const at::Tensor& x, uint64_t) const override {
    COMPACT_CHECK(takes(x),
                  "codec pool takes float32, bfloat16 and float16 maps [batch, channels, "
                  "length(s)] of 3 to 5 dimensions, not ",
                  c10::toString(x.scalar_type()), " ", x.sizes());
    Encoded e;
    e.parts = {means(x)};
    e.decode = [shape = Shape(x), w = windows_](const Encoded::Parts& parts) {
      at::Tensor y = shape.empty();
      const auto whole = [&](int64_t axis) { return y.size(axis) == parts[0].size(axis) * w.size; };
      // Upsampling rounds quotients where the size is not a power of two, and would then take some
      // values from the neighbouring window.
      const bool exact = std::has_single_bit(static_cast<uint64_t>(w.size));
      if (y.dim() == 4 && exact && w.size == w.stride && whole(2) && whole(3)) {
        at::upsample_nearest2d_out(y, parts[0], {y.size(2), y.size(3)});
      } else {
        spread(parts[0], y, 2, w);
      }
      return y;
    };
    e.windows = windows_;
    e.decode_means = [](const Encoded::Parts& parts) { return parts[0]; };
    return e;
  }

  std::optional<int64_t> bytes(int64_t, int64_t, at::ScalarType) const override {
    return std::nullopt;  // depends on how many axes the maps have
  }

 private:
  // Windows that the edge cuts off are means over the elements inside.
  at::Tensor means(const at::Tensor& x) const {
    const int64_t s = windows_.stride;
    const auto k = [&](int64_t axis) { return std::min(windows_.size, x.size(axis)); };
    switch (x.dim()) {
      case 3:
        return at::avg_pool2d(x.unsqueeze(2), {1, k(2)}, {1, s}, 0, true, false).squeeze(2);
      case 4:
        return at::avg_pool2d(x, {k(2), k(3)}, s, 0, /*ceil_mode=*/true,
                              /*count_include_pad=*/false);
      default:
        return at::avg_pool3d(x, {k(2), k(3), k(4)}, s, 0, true, false);
    }
  }

  // y[.., p, ..] = mean[.., min(p / stride, last), ..], along `axis` and those after it.
  static void spread(const at::Tensor& mean, const at::Tensor& y, int64_t axis, Windows w) {
    if (axis == y.dim()) {
      y.copy_(mean);
      return;
    }
    const int64_t length = y.size(axis), last = mean.size(axis) - 1;
    for (int64_t offset = 0; offset < std::min(w.stride, length); ++offset) {
      const at::Tensor part = y.slice(axis, offset, {}, w.stride);
      const int64_t count = part.size(axis), own = std::min(count, last + 1);
      spread(mean.narrow(axis, 0, own), part.narrow(axis, 0, own), axis + 1, w);
      for (int64_t p = own; p < count; ++p) {
        spread(mean.narrow(axis, last, 1), part.narrow(axis, p, 1), axis + 1, w);
      }
    }
  }

  Windows windows_;
};

CodecPtr make_pool(const Spec& spec) {
  spec.allow({"size", "stride"});
  Windows w{.size = spec.integer("size", 2)};
  w.stride = spec.integer("stride", w.size);
  COMPACT_CHECK(w.size >= 1 && w.size <= 64, "pool:size must be from 1 to 64, is ", w.size);
  COMPACT_CHECK(w.stride >= 1 && w.stride <= 64, "pool:stride must be from 1 to 64, is ", w.stride);
  return std::make_shared<Pool>(w);
}

}  // namespace

extern const CodecInfo pool_codec = {
    .name = "pool",
    .settings = "size=2,stride=SIZE",
    .summary =
        "means over windows of maps [batch, channels, length(s)], read back as constant over each",
    .make = make_pool,
    .content = [](const Spec&) { return Content::kRounded; }};

}  // namespace compact
