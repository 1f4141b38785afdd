// SPDX-License-Identifier: Apache-2.0
// The part of CUDA that compact/kernels/cuda uses, for a C++ compiler: the same sources then run on
// the CPU, with the checks of emulator.h. A kernel that needs more of CUDA adds it here.
#pragma once

#include <math.h>  // expf and others in the global namespace

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ thread_local  // how access.cpp knows it; a block runs on one thread of the CPU

// ---- the host's side ----

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}  // NOLINT
};

using cudaStream_t = struct CUstream_st*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

inline cudaError_t emulated_status(int code) { return static_cast<cudaError_t>(code); }
inline cudaError_t cudaGetLastError() { return emulated_status(emulated::take_error()); }
inline const char* cudaGetErrorString(cudaError_t) { return emulated::error_text(); }
inline cudaError_t cudaDeviceSynchronize() { return emulated_status(emulated::synchronize()); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  *p = static_cast<T*>(emulated::allocate(bytes));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  const cudaError_t status = cudaDeviceSynchronize();
  emulated::release(p);
  return status;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const cudaError_t status = cudaDeviceSynchronize();
  if (status == cudaSuccess) std::memcpy(to, from, bytes);
  return status;
}
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes) {
  return emulated_status(emulated::allow_shared(reinterpret_cast<const void*>(kernel), bytes));
}

// kernel<<<grid, block, shared, stream>>>(args...)
template <class... P>
void emulated_launch(const char* name, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                     std::type_identity_t<P>... args) {
  const auto body = [=]() __attribute__((no_sanitize("thread"))) { kernel(args...); };
  using Body = decltype(body);
  emulated::submit({name,
                    reinterpret_cast<const void*>(kernel),
                    {grid.x, grid.y, grid.z},
                    {block.x, block.y, block.z},
                    shared,
                    {new Body(body), [](const void* b) {
    delete static_cast<Body*>(b); }},
                    [](const void* b) __attribute__((no_sanitize("thread"))) {
                      (*static_cast<Body*>(b))();
}
});
}

// ---- the device's side ----

using emulated::blockDim, emulated::blockIdx, emulated::gridDim, emulated::threadIdx;

inline void __syncthreads(emulated::Site at = emulated::Site::current()) { emulated::barrier(at); }
inline void __syncwarp(unsigned mask = 0xffffffffu, emulated::Site at = emulated::Site::current()) {
  emulated::exchange(mask, 0, -1, true, at);
}

template <class T>
T emulated_shuffle(unsigned mask, T value, int source, emulated::Site at) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulated::exchange(mask, bits, source, false, at);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              emulated::Site at = emulated::Site::current()) {
  const int lane = emulated::lane();
  return emulated_shuffle(mask, value, lane / width * width + source % width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32,
                  emulated::Site at = emulated::Site::current()) {
  const int lane = emulated::lane(), from = lane ^ step;
  return emulated_shuffle(mask, value, from < (lane / width + 1) * width ? from : lane, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   emulated::Site at = emulated::Site::current()) {
  const int lane = emulated::lane(), from = lane + static_cast<int>(delta);
  return emulated_shuffle(mask, value, from < (lane / width + 1) * width ? from : lane, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 emulated::Site at = emulated::Site::current()) {
  const int lane = emulated::lane(), from = lane - static_cast<int>(delta);
  return emulated_shuffle(mask, value, from >= lane / width * width ? from : lane, at);
}
inline unsigned __ballot_sync(unsigned mask, int set,
                              emulated::Site at = emulated::Site::current()) {
  return static_cast<unsigned>(emulated::exchange(mask, set != 0, -1, false, at));
}
inline int __any_sync(unsigned mask, int set, emulated::Site at = emulated::Site::current()) {
  return __ballot_sync(mask, set, at) != 0;
}
inline int __all_sync(unsigned mask, int set, emulated::Site at = emulated::Site::current()) {
  return __ballot_sync(mask, set, at) == mask;
}

// a + b towards zero, where a double holds it.
inline float __fadd_rz(float a, float b) {
  const double sum = static_cast<double>(a) + b;
  const auto near = static_cast<float>(sum);
  return fabs(near) > fabs(sum) ? nextafterf(near, 0.0f) : near;
}

// Byte i is the byte of {a, b} that digit i of `select` names.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<uint32_t>(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return bytes;
}

// The low half of high:low >> shift % 32.
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift % 32);
}

// CUDA's own overloads in the global namespace.
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
