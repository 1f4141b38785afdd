// SPDX-License-Identifier: Apache-2.0
// `offload`: into the host's memory.
#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "compact/codecs/codec_types_impl.h"
#include "compact/codecs/meta_device.h"
#include "compact/codecs/side_copy_impl.h"

namespace compact {
namespace {

at::Tensor on_host(const at::Tensor& x) {
  if (!x.is_meta()) {
    return at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(!x.is_cpu()));
  }
  // For a CPU this is ordinary memory; for a GPU it is counted as the host's.
  std::optional<MetaOnHost> host;
  if (device_type_of(x) != at::kCPU) host.emplace();
  return at::empty(x.sizes(), x.options());
}

at::Tensor copied_back(const Shape& shape, const at::Tensor& host) {
  const at::Tensor y = shape.empty();
  flat_of(y).copy_(host, /*non_blocking=*/true);
  return y;
}

// A copy back from the host that has begun, for one restore.
Encoded coming_back(const Shape& shape, const at::Tensor& host) {
  const at::Tensor y = shape.empty();
  const auto coming = std::make_shared<SideCopy>(flat_of(y));
  coming->from_host(host);
  Encoded e;
  e.parts = {y};
  e.decode = [coming](const Encoded::Parts& parts) {
    coming->wait();
    return parts[0];
  };
  return e;
}

class Offload final : public Codec {
 public:
  bool takes(const at::Tensor&) const override { return true; }
  // From a GPU into pinned memory: the copy runs beside what the current stream does next, and the
  // host does not wait for it, so no further codec may read the parts. On the CPU a plain copy.
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    const bool alone = x.use_count() == 1 && x.storage().use_count() == 1;
    const at::Tensor flat = flat_of(x), host = on_host(flat);
    Encoded e;
    e.parts = {host};
    if (device_type_of(x) == at::kCPU) {
      host.copy_(flat);
      e.decode = [shape = Shape(x)](const Encoded::Parts& parts) {
        return copied_back(shape, parts[0]);
      };
      return e;
    }
    const auto leaving = std::make_shared<SideCopy>(flat);
    leaving->to_host(host);
    // Another holder of the tensor may write to it, so the stream waits for the copy.
    if (!alone && flat.is_alias_of(x)) leaving->wait();
    e.settle = [leaving = std::weak_ptr(leaving)] {
      if (const auto copy = leaving.lock()) copy->wait();
    };
    e.decode = [leaving, shape = Shape(x)](const Encoded::Parts& parts) {
      leaving->wait();
      return copied_back(shape, parts[0]);
    };
    e.fetch = [leaving, shape = Shape(x)](const Encoded::Parts& parts) {
      leaving->wait();
      return coming_back(shape, parts[0]);
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
