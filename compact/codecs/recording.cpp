// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/recording.h"

#include <utility>

#include "compact/base/check.h"
#ifdef COMPACT_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace compact {
namespace {

class PlainRecording final : public Recording {
 public:
  void record(std::function<void()> work) override { work_ = std::move(work); }
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

#ifdef COMPACT_CUDA
class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(c10::Device device) : device_(device) {}

  void record(std::function<void()> work) override {
    const c10::cuda::CUDAGuard guard(device_);
    // The graph has its own memory pool, for which memory cached by earlier steps is freed.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    graph->capture_begin();
    try {
      work();
    } catch (...) {
      try {
        graph->capture_end();            // else the stream could launch nothing more
      } catch (const std::exception&) {  // the error of `work` itself says more
      }
      throw;
    }
    graph->capture_end();
    graph_ = std::move(graph);
  }
  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_->replay();
  }

 private:
  c10::Device device_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};
#endif

}  // namespace

std::unique_ptr<Recording> plain_recording() { return std::make_unique<PlainRecording>(); }

std::unique_ptr<Recording> cuda_recording([[maybe_unused]] c10::Device device) {
#ifdef COMPACT_CUDA
  COMPACT_CHECK(device.is_cuda(), "a CUDA graph needs a GPU, the device is ", device.str());
  return std::make_unique<CudaRecording>(device);
#else
  fail("this build has no CUDA graphs; configure with the preset `cuda`");
#endif
}

}  // namespace compact
