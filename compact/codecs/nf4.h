// SPDX-License-Identifier: Apache-2.0
// Matrices in NF4 (Dettmers et al. 2023, arXiv 2305.14314): four bits an element and a scale for 64
// of them, which may be a code of eight bits itself ("nested"). Codes and scales are those that
// bitsandbytes 0.50 makes on a CPU, bit for bit, on every machine and with any number of threads
// (its own mean of more than 32,768 scales depends on that; here it is the mean of one thread).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace compact {

struct Nf4Format {
  bool nested = false;
};

struct Nf4 {
  at::Tensor codes;        // u8 [ceil(rows columns / 2)]
  at::Tensor scales;       // f32, one a block; nested: one for 256 blocks, and last their offset
  at::Tensor scale_codes;  // u8, one a block; undefined: scales are not nested
  at::Tensor maps;  // f32 [16 + 256]: what codes mean, and codes of scales; others may share it
  int64_t rows = 0, columns = 0;

  bool nested() const { return scale_codes.defined(); }
  // The tensors that are its own: all but the maps.
  std::vector<at::Tensor> tensors() const;
  // Writes the matrix into `to` [rows, columns], f32 or bf16 and dense but for the stride of its
  // rows.
  void decode(const at::Tensor& to) const;
};

// The levels of NF4 and the map of nested scales (Dettmers 2015, arXiv 1511.04561).
at::Tensor nf4_maps();
// With uninitialized codes, which is what plans need; `maps` on the device that it is to be on.
Nf4 empty_nf4(int64_t rows, int64_t columns, bool nested, const at::Tensor& maps);
// On the CPU, of a matrix of floats on any device.
Nf4 encode_nf4(const at::Tensor& matrix, bool nested);

}  // namespace compact
