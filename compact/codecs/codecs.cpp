// SPDX-License-Identifier: Apache-2.0
// The table of codecs, chains of them, and what all of them share.
#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/philox.h"
#include "compact/codecs/codec_types_impl.h"

namespace compact {
namespace {

class Chain final : public Codec {
 public:
  explicit Chain(std::vector<CodecPtr> links) : links_(std::move(links)) {}

  bool takes(const at::Tensor& x) const override { return links_[0]->takes(x); }

  Encoded encode(const at::Tensor& x, uint64_t key) const override {
    Encoded all = links_[0]->encode(x, key);
    for (size_t i = 1; i < links_.size(); ++i) all = wrap(*links_[i], all, derive(key, i));
    return all;
  }

  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType type) const override {
    return links_.size() == 1 || keeps_bytes_ ? links_[0]->bytes(rows, n, type) : std::nullopt;
  }

  void keeps_bytes() { keeps_bytes_ = true; }

 private:
  // The parts of `inner`, each through `outer` where it takes it.
  static Encoded wrap(const Codec& outer, const Encoded& inner, uint64_t key) {
    Encoded all;
    struct Link {
      size_t first, count;
      std::function<at::Tensor(const Encoded::Parts&)> decode;  // null: the part itself
    };
    std::vector<Link> links;
    for (const at::Tensor& part : inner.parts) {
      const size_t first = all.parts.size();
      if (!outer.takes(part)) {
        all.parts.push_back(part);
        links.push_back({first, 1, nullptr});
        continue;
      }
      Encoded e = outer.encode(part, derive(key, first));
      all.parts.insert(all.parts.end(), e.parts.begin(), e.parts.end());
      links.push_back({first, e.parts.size(), std::move(e.decode)});
    }
    const auto after = [links](const std::function<at::Tensor(const Encoded::Parts&)>& decode) {
      return [links, decode](const Encoded::Parts& parts) {
        Encoded::Parts own;
        for (const Link& link : links) {
          const auto from = parts.begin() + static_cast<std::ptrdiff_t>(link.first);
          own.push_back(link.decode
                            ? link.decode({from, from + static_cast<std::ptrdiff_t>(link.count)})
                            : *from);
        }
        return decode(own);
      };
    };
    all.decode = after(inner.decode);
    all.windows = inner.windows;
    if (inner.decode_means) all.decode_means = after(inner.decode_means);
    return all;
  }

  std::vector<CodecPtr> links_;
  bool keeps_bytes_ = false;
};

}  // namespace

std::span<const CodecInfo* const> codecs() {
  static const CodecInfo* const all[] = {&quantize_codec, &mask_codec, &index_codec, &pool_codec,
                                         &offload_codec};
  return all;
}

const CodecInfo* find_codec(const std::string& name) {
  for (const CodecInfo* c : codecs()) {
    if (c->name == name) return c;
  }
  return nullptr;
}

std::span<const CodecChoice> codec_choices() {
  static const std::vector<CodecChoice> all = [] {
    std::vector<CodecChoice> found;
    for (const CodecInfo* codec : codecs()) {
      if (!codec->choices) continue;
      for (CodecChoice& choice : codec->choices()) found.push_back(std::move(choice));
    }
    std::ranges::stable_sort(found, {}, &CodecChoice::error);
    return found;
  }();
  return all;
}

CodecPtr make_codec(const std::vector<Spec>& chain) {
  std::vector<CodecPtr> links;
  bool moved = false;
  for (const Spec& spec : chain) {
    const CodecInfo& info = named(codecs(), spec.name, "no codec");
    COMPACT_CHECK(!moved, "codecs `", Spec::chain_str(chain),
                  "`: `offload` must be the last, since what it leaves is still on its way");
    moved = &info == &offload_codec;
    links.push_back(info.make(spec));
  }
  if (links.size() == 1) return links[0];
  const bool unchanged = moved && links.size() == 2;
  auto result = std::make_shared<Chain>(std::move(links));
  if (unchanged) result->keeps_bytes();
  return result;
}

at::Tensor Encoded::restore() const {
  RECORD_USER_SCOPE(kCodecScope);
  return decode(parts);
}
at::Tensor Encoded::means() const {
  RECORD_USER_SCOPE(kCodecScope);
  return decode_means(parts);
}

int64_t Encoded::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& p : parts) sum += static_cast<int64_t>(p.nbytes());
  return sum;
}

at::Tensor flat_of(const at::Tensor& x) {
  if (!x.is_non_overlapping_and_dense()) return x.contiguous().view({-1});
  return x.as_strided({x.numel()}, {1});
}

Shape::Shape(const at::Tensor& x) : sizes(x.sizes().vec()), options(x.options()) {
  strides = x.is_non_overlapping_and_dense()
                ? x.strides().vec()
                : at::empty_like(x, at::kMeta, at::MemoryFormat::Contiguous).strides().vec();
}

at::Tensor Shape::empty() const { return at::empty_strided(sizes, strides, options); }

Content content_of(const std::vector<Spec>& chain) {
  Content least = Content::kExact;
  for (const Spec& spec : chain) {
    least = std::max(least, named(codecs(), spec.name, "no codec").content(spec));
  }
  return least;
}

}  // namespace compact
