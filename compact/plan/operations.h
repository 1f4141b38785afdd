// SPDX-License-Identifier: Apache-2.0
// The operations of a planned step, in the order in which they would run: every one of LibTorch
// that calls no other, and every kernel of ours, with what it computes, reads and writes.
// One may stand for several alike (MetaTimes), with what they do together.
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "compact/kernels/kernel_watch.h"
#include "compact/ops/memory/step_moment.h"

namespace compact {

struct Operation {
  std::string name;       // as LibTorch or kernels.h have it: mm, rms_norm
  StepMoment moment;      // of the step that it runs in
  bool codec = false;     // packs, unpacks or projects a tensor
  bool random = false;    // attention that drops probabilities, others in every step
  double products = 0;    // floating-point operations of matrix products, convolutions, attention
  at::ScalarType type{};  // of the operands of products
  // Read and written at least: every operand once, of a selection what is selected; of norms that
  // read their operands twice, twice. Tensors that do not live on the meta device are left out.
  double bytes = 0;
  bool host = false;     // `bytes` are those that go between the device and the host
  int64_t launches = 1;  // on CUDA, about
};

// Records this thread's operations on the meta device while it lives; one at a time.
class OperationRecorder {
 public:
  OperationRecorder();
  ~OperationRecorder();
  OperationRecorder(const OperationRecorder&) = delete;
  OperationRecorder& operator=(const OperationRecorder&) = delete;

  std::vector<Operation> take();

 private:
  std::vector<Operation> operations_;
  at::CallbackHandle handle_;
  kernels::KernelWatch watch_;
};

}  // namespace compact
