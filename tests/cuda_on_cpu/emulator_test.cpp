// SPDX-License-Identifier: Apache-2.0
// Broken kernels, one a fault, and what the emulator says of them. Compiled as the kernels are.
#include <cstdio>
#include <string_view>

#include "cuda_runtime.h"

namespace {

__global__ void outside_mask(int*) {
  if (threadIdx.x < 16) __shfl_sync(0xffffu, 1, 20);
}
__global__ void two_barriers(int*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void left_early(int*) {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void two_values(int* p) { *p = static_cast<int>(threadIdx.x); }
__global__ void one_value(int* p) { *p = 7; }
__global__ void two_blocks(int* p) { p[threadIdx.x] += 1; }
__global__ void beyond(int* p) { p[threadIdx.x + 1] = 1; }
int of_host = 0;
__global__ void host_memory(int*) { of_host += 1; }
__global__ void not_written(int* p) {
  __shared__ int all[64];
  if (threadIdx.x > 0) all[threadIdx.x] = 1;
  __syncthreads();
  p[threadIdx.x] = all[63 - threadIdx.x];
}
__global__ void warp_ordered(int* p) {
  __shared__ int all[64];
  all[threadIdx.x] = 1;
  __syncwarp();
  p[threadIdx.x] = all[threadIdx.x ^ 1];
}
__global__ void not_ordered(int* p) {
  __shared__ int all[64];
  all[threadIdx.x] = 1;
  p[threadIdx.x] = all[threadIdx.x ^ 1];
}
__global__ void of_another(int** p) {
  int mine = static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) *p = &mine;
  __syncthreads();
  if (threadIdx.x == 1) **p = 5;
}

int wrong = 0;
// Runs in a process of its own: an error stays.
template <class T>
void expect(std::string_view wanted, std::string_view words, const char* name, void (*kernel)(T*),
            unsigned blocks = 1, size_t shared = 0, int allowed = 0) {
  if (wanted != name) return;
  T* p = nullptr;
  cudaMalloc(&p, 64 * sizeof(T));
  if (allowed) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed);
  emulated_launch(name, blocks, 64, shared, kernel, p);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  const std::string_view text = status == cudaSuccess ? "" : cudaGetErrorString(status);
  const bool good = words.empty() ? text.empty() : text.find(words) != text.npos;
  std::printf("%s %s: %s\n", good ? "ok   " : "WRONG", name, std::string(text).c_str());
  wrong += !good;
}

}  // namespace

int main(int, char** argv) {
  const char* w = argv[1];
  expect(w, "outside of the mask", "outside_mask", outside_mask);
  expect(w, "threads of its block that wait at", "two_barriers", two_barriers);
  expect(w, "threads of its block that left", "left_early", left_early);
  expect(w, "writes 4 bytes", "two_values", two_values);
  expect(w, "", "one_value", one_value, 3);
  expect(w, "of block 0", "two_blocks", two_blocks, 2);
  expect(w, "beyond", "beyond", beyond);
  expect(w, "not the device's", "host_memory", host_memory);
  expect(w, "nobody wrote", "not_written", not_written);
  expect(w, "", "warp_ordered", warp_ordered);
  expect(w, "reads 4 bytes", "not_ordered", not_ordered);
  expect(w, "another thread's own", "of_another", of_another);
  expect(w, "invalid configuration", "too_much_shared", one_value, 1, 48 * 1024 + 4);
  expect(w, "", "enough_shared", one_value, 1, 48 * 1024 + 4, 227 * 1024);
  expect(w, "more shared memory", "beyond_the_card", one_value, 1, 0, 227 * 1024 + 4);
  return wrong + of_host;
}
