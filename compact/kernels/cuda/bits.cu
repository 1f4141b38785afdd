// SPDX-License-Identifier: Apache-2.0
// One bit an element: a thread makes or reads a byte.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

template <class U>
__global__ void pack(BitPack a) {
  const U* x = static_cast<const U*>(a.x);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, bytes = (a.count + 7) / 8;
  bool stray = false;
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < bytes; b += stride) {
    uint32_t byte = 0;
    for (int j = 0; j < 8 && 8 * b + j < a.count; ++j) {
      const uint32_t u = x[8 * b + j];
      const bool set = u - a.low < a.span;
      byte |= (set ? 1u : 0u) << j;
      stray |= !set && u != a.other;
    }
    a.bits[b] = static_cast<uint8_t>(byte);
  }
  if (stray && a.strays) *a.strays = 1;  // whoever writes, writes the same
}

template <class U>
__global__ void unpack(BitUnpack a) {
  U* x = static_cast<U*>(a.x);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < a.count; i += stride) {
    x[i] = static_cast<U>(a.bits[i / 8] >> i % 8 & 1 ? a.one : a.zero);
  }
}

}  // namespace

void bit_pack(const BitPack& a, const Launch& launch) {
  if (a.count == 0) return;
  with_word(a.element, [&]<class U>() {
    pack<U><<<blocks_for(a.count, 8 * kThreads), kThreads, 0, stream_of(launch)>>>(a);
  });
  check(cudaGetLastError(), "bit_pack");
}

void bit_unpack(const BitUnpack& a, const Launch& launch) {
  if (a.count == 0) return;
  with_word(a.element, [&]<class U>() {
    unpack<U><<<blocks_for(a.count, kThreads), kThreads, 0, stream_of(launch)>>>(a);
  });
  check(cudaGetLastError(), "bit_unpack");
}

}  // namespace compact::kernels::cuda
