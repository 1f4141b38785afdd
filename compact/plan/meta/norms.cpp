// SPDX-License-Identifier: Apache-2.0
// Batch and layer norms on the meta device.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <tuple>

#include "compact/codecs/meta_device.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<at::Tensor>;

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& x, const MaybeTensor& weight,
                                                     const MaybeTensor&, const MaybeTensor&,
                                                     const MaybeTensor&, bool training, double,
                                                     double) {
  const auto statistics = (weight && weight->defined() ? weight->options() : x.options());
  const int64_t channels = x.size(1);
  const std::vector<int64_t> sizes = {training ? channels : 0};
  std::tuple made{at::empty_like(x), at::empty(sizes, statistics), at::empty(sizes, statistics)};
  if (meta_device() == c10::kCPU) {
    // A factor and an offset of each channel; where channels are neighbours in memory, sums of each
    // thread before them.
    const bool neighbours = x.numel() == x.size(0) * channels ||
                            x.suggest_memory_format() != at::MemoryFormat::Contiguous;
    const int64_t sums = training && neighbours ? at::get_num_threads() : 0;
    scratch_on(x, (2 + sums) * channels * static_cast<int64_t>(sizeof(float)));
  }
  return made;
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward(
    const Tensor&, const Tensor& x, const MaybeTensor& weight, const MaybeTensor&,
    const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool, double,
    std::array<bool, 3> want) {
  const auto affine = weight && weight->defined() ? weight->options() : x.options();
  const auto channels = [&](bool wanted) {
    return wanted ? at::empty({x.size(1)}, affine) : Tensor();
  };
  const Tensor gx = want[0] ? at::empty_like(x) : Tensor();
  // The CPU's takes the map twice.
  const Tensor other = meta_device() == c10::kCPU ? at::empty_like(x) : Tensor();
  return {gx, channels(want[1]), channels(want[2])};
}

// The CUDA kernel reads weight and bias as of the input's type, and refuses others.
void check_types(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias) {
  if (meta_device() != c10::kCUDA) return;
  for (const MaybeTensor* t : {&weight, &bias}) {
    TORCH_CHECK(!*t || (*t)->scalar_type() == x.scalar_type(), "native_layer_norm on CUDA takes ",
                x.scalar_type(), " beside an input of that type, is given ", (*t)->scalar_type());
  }
}

// Statistics have the type of the weight on the CPU, f32 on a GPU.
std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, c10::SymIntArrayRef normalized,
                                              const MaybeTensor& weight, const MaybeTensor& bias,
                                              double) {
  check_types(x, weight, bias);
  auto sizes = x.sizes().vec();
  for (size_t i = 0; i < normalized.size(); ++i) sizes[sizes.size() - 1 - i] = 1;
  const bool cuda = meta_device() == c10::kCUDA;
  const at::ScalarType type = cuda ? at::kFloat : weight ? weight->scalar_type() : x.scalar_type();
  const auto small = x.options().dtype(type);
  return {at::empty(x.sizes(), x.options()), at::empty(sizes, small), at::empty(sizes, small)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor&, const Tensor& x, c10::SymIntArrayRef normalized, const Tensor&, const Tensor&,
    const MaybeTensor& weight, const MaybeTensor& bias, std::array<bool, 3> wanted) {
  check_types(x, weight, bias);
  const auto like = [](const Tensor& t) { return at::empty(t.sizes(), t.options()); };
  std::tuple<Tensor, Tensor, Tensor> result{wanted[0] ? like(x) : Tensor(),
                                            wanted[1] && weight ? like(*weight) : Tensor(),
                                            wanted[2] && bias ? like(*bias) : Tensor()};
  int64_t width = 1;
  for (const auto& n : normalized) width *= n.expect_int();
  // The CPU sums both for each thread.
  if (meta_device() == c10::kCPU && (wanted[1] || wanted[2])) {
    scratch_on(x, 2 * at::get_num_threads() * width * static_cast<int64_t>(sizeof(float)));
  }
  return result;
}

}  // namespace

void add_norms(MetaLibrary& library) {
  library.replace("native_layer_norm", &layer_norm);
  library.add("native_layer_norm_backward", &layer_norm_backward);
  library.add("native_batch_norm", &native_batch_norm);
  library.add("native_batch_norm_backward", &native_batch_norm_backward);
}

}  // namespace compact
