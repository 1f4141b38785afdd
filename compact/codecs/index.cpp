// SPDX-License-Identifier: Apache-2.0
// `index`: 64-bit integers in as few bytes as hold them.
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/codec_types_impl.h"

namespace compact {
namespace {

at::ScalarType narrowest(int64_t low, int64_t high) {
  if (low >= 0 && high <= 0xff) return at::kByte;
  if (low >= -0x8000 && high <= 0x7fff) return at::kShort;
  if (low >= -int64_t{0x80000000} && high <= 0x7fffffff) return at::kInt;
  return at::kLong;
}

class Index final : public Codec {
 public:
  explicit Index(std::optional<int64_t> limit) : limit_(limit) {}

  // Without a limit the values must be read, for which a GPU would have to be waited for.
  bool takes(const at::Tensor& x) const override {
    return x.scalar_type() == at::kLong && (limit_ || x.is_cpu());
  }
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    COMPACT_CHECK(takes(x), "codec index takes int64", limit_ ? "" : " on the CPU", ", not ",
                  c10::toString(x.scalar_type()));
    at::ScalarType type = at::kByte;
    if (limit_) {
      type = narrowest(0, *limit_ - 1);
    } else if (x.numel() > 0) {
      const auto [low, high] = at::aminmax(x);
      type = narrowest(low.item<int64_t>(), high.item<int64_t>());
    }
    Encoded e;
    e.parts = {flat_of(x).to(type, false, true)};
    e.decode = [shape = Shape(x)](const Encoded::Parts& parts) {
      const at::Tensor y = shape.empty();
      flat_of(y).copy_(parts[0]);
      return y;
    };
    return e;
  }
  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType) const override {
    if (!limit_) return std::nullopt;
    return rows * n * static_cast<int64_t>(c10::elementSize(narrowest(0, *limit_ - 1)));
  }

 private:
  std::optional<int64_t> limit_;  // values are in [0, limit)
};

CodecPtr make_index(const Spec& spec) {
  spec.allow({"limit"});
  if (!spec.has("limit")) return std::make_shared<Index>(std::nullopt);
  const int64_t limit = spec.integer("limit", 1);
  COMPACT_CHECK(limit >= 1, "index:limit must be at least 1, is ", limit);
  return std::make_shared<Index>(limit);
}

}  // namespace

extern const CodecInfo index_codec = {
    .name = "index",
    .settings = "limit=N",
    .summary =
        "64-bit integers in the fewest bytes that hold them, or that hold what is below the limit",
    .make = make_index,
    .content = [](const Spec&) { return Content::kExact; }};

}  // namespace compact
