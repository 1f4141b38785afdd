// SPDX-License-Identifier: Apache-2.0
// `offload`: into the host's memory.
#include <ATen/ATen.h>

#include "compact/codecs/codec_types.h"

namespace compact {
namespace {

class Offload final : public Codec {
 public:
  bool takes(const at::Tensor&) const override { return true; }
  // From a GPU into pinned memory, on the current stream: the copy runs behind what was launched
  // before, and nobody waits. On the CPU a plain copy.
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    const at::Tensor flat = flat_of(x);
    // Plans count it with the device, as it is on a CPU.
    const at::Device to = x.is_meta() ? at::kMeta : at::kCPU;
    at::Tensor host = at::empty(flat.sizes(), flat.options().device(to).pinned_memory(x.is_cuda()));
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

CodecPtr make(const Spec& spec) {
  spec.allow({});
  return std::make_shared<Offload>();
}

}  // namespace

extern const CodecInfo offload_codec = {"offload", "", "in the host's memory (on a CPU: a copy)",
                                        true, make};

}  // namespace compact
