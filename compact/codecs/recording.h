// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: work on a device that is recorded once and replayed with the same arguments.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace compact {

class Recording {
 public:
  virtual ~Recording() = default;
  // Records what `work` launches, which runs at replay() only. Memory that `work` asks for belongs
  // to the recording, and every replay writes it again. `work` must not wait
  // for the device, and must be there as long as the recording. Whatever it throws is passed on,
  // and nothing is recorded then.
  virtual void record(std::function<void()> work) = 0;
  virtual void replay() = 0;
};

// A CUDA graph of what is launched on the current stream, which must not be the default one. Throws
// InputError in a build without CUDA.
std::unique_ptr<Recording> cuda_recording(c10::Device device);

// The same on any device, without a graph: replay() runs the work again, with the arguments that it
// was recorded with. For tests of what may change between replays.
std::unique_ptr<Recording> plain_recording();

}  // namespace compact
