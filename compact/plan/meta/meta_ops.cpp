// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/meta/meta_ops.h"

#include <ATen/ATen.h>

#include <memory>
#include <mutex>

#include "compact/codecs/meta_device.h"
#include "compact/ops/autograd/quiet.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {

at::Tensor scratch_on(const at::Tensor& like, int64_t bytes) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

bool converts_bf16(const at::Tensor& t) {
  return meta_device() == c10::kCPU && t.scalar_type() == at::kBFloat16 &&
         bf16_products() == Bf16Products::kConverted;
}

void register_meta_ops() {
  static std::once_flag once;
  static std::unique_ptr<MetaLibrary> library;  // registrations live as long as it does
  std::call_once(once, [] {
    library = std::make_unique<MetaLibrary>();
    const QuietWarnings quiet;  // of what is replaced
    add_products(*library);
    add_attention(*library);
    add_norms(*library);
    add_convolution(*library);
    add_indexing(*library);
    add_copies(*library);
    add_sums(*library);
    add_resize(*library);
  });
}

}  // namespace compact
