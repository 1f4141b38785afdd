// SPDX-License-Identifier: Apache-2.0
// The table of codecs, chains of them, and what all of them share.
#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

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
  using Decode = std::function<at::Tensor(const Encoded::Parts&)>;

  // The parts of `inner`, each through `outer` where it takes it.
  static Encoded wrap(const Codec& outer, const Encoded& inner, uint64_t key) {
    std::vector<Encoded> links;
    size_t first = 0;
    for (const at::Tensor& part : inner.parts) {
      if (outer.takes(part)) {
        links.push_back(outer.encode(part, derive(key, first)));
      } else {
        links.push_back({.parts = {part}, .decode = [](const auto& own) { return own[0]; }});
      }
      first += links.back().parts.size();
    }
    return join(inner.decode, inner.decode_means, inner.windows, std::move(links));
  }

  // One Encoded of the parts of all links: decodes each link, then the whole from their tensors.
  static Encoded join(const Decode& decode, const Decode& decode_means, Windows windows,
                      std::vector<Encoded> given) {
    Encoded all;
    std::vector<size_t> counts;
    bool fetches = false;
    std::vector<std::function<void()>> settles;  // like `links`, hold no tensors
    for (Encoded& link : given) {
      counts.push_back(link.parts.size());
      std::ranges::move(link.parts, std::back_inserter(all.parts));
      link.parts.clear();
      if (link.settle) settles.push_back(link.settle);
      fetches |= link.fetch != nullptr;
    }
    const auto links = std::make_shared<const std::vector<Encoded>>(std::move(given));
    // Calls each(link, its parts).
    const auto for_links = [links, counts](const Encoded::Parts& parts, const auto& each) {
      auto from = parts.begin();
      for (size_t i = 0; i < counts.size(); ++i) {
        const auto to = from + static_cast<std::ptrdiff_t>(counts[i]);
        each((*links)[i], Encoded::Parts(from, to));
        from = to;
      }
    };
    const auto after = [for_links](const Decode& last) {
      return [for_links, last](const Encoded::Parts& parts) {
        Encoded::Parts own;
        for_links(parts, [&](const Encoded& link, const Encoded::Parts& its) {
          own.push_back(link.decode(its));
        });
        return last(own);
      };
    };
    all.decode = after(decode);
    if (decode_means) all.decode_means = after(decode_means);
    all.windows = windows;
    if (!settles.empty()) {
      all.settle = [settles] {
        for (const auto& settle : settles) settle();
      };
    }
    if (fetches) {
      all.fetch = [for_links, decode, decode_means, windows](const Encoded::Parts& parts) {
        std::vector<Encoded> back;
        for_links(parts, [&](const Encoded& link, const Encoded::Parts& its) {
          back.push_back(link.fetch ? link.fetch(its) : link);
          if (!link.fetch) back.back().parts = its;
        });
        return join(decode, decode_means, windows, std::move(back));
      };
    }
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

Encoded Encoded::fetched() const {
  RECORD_USER_SCOPE(kCodecScope);
  return fetch(parts);
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
