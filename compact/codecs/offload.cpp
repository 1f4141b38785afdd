// SPDX-License-Identifier: Apache-2.0
// `offload`: into the host's memory.
#include <ATen/ATen.h>

#include <optional>

#include "compact/codecs/codec_types_impl.h"
#include "compact/codecs/meta_device.h"

namespace compact {
namespace {

at::Tensor on_host(const at::Tensor& x) {
  if (!x.is_meta()) {
    return at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(x.is_cuda()));
  }
  // A CPU's memory is the host's.
  std::optional<MetaOnHost> host;
  if (device_type_of(x) != at::kCPU) host.emplace();
  return at::empty(x.sizes(), x.options());
}

class Offload final : public Codec {
 public:
  bool takes(const at::Tensor&) const override { return true; }
  // From a GPU into pinned memory, on the current stream: the copy runs behind what was launched
  // before, and nobody waits, so that no other codec may read it here. On the CPU a plain copy.
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    const at::Tensor flat = flat_of(x), host = on_host(flat);
    host.copy_(flat, true);
    Encoded e;
    e.parts = {host};
    e.decode = [shape = Shape(x)](const Encoded::Parts& parts) {
      const at::Tensor y = shape.empty();
      flat_of(y).copy_(parts[0], true);
      return y;
    };
    return e;
  }
  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType type) const override {
    return rows * n * static_cast<int64_t>(c10::elementSize(type));
  }
};

CodecPtr make_offload(const Spec& spec) {
  spec.allow({});
  return std::make_shared<Offload>();
}

}  // namespace

extern const CodecInfo offload_codec = {.name = "offload",
                                        .settings = "",
                                        .summary = "in the host's memory (on a CPU: a copy)",
                                        .make = make_offload,
                                        .content = [](const Spec&) { return Content::kExact; }};

}  // namespace compact
