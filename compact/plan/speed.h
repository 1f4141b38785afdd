// SPDX-License-Identifier: Apache-2.0
// How long the steps of a block and the products of the head take: measured on this machine once
// and remembered, or from stated figures of another device.
#pragma once

#include <string>
#include <vector>

#include "compact/plan/request.h"

namespace compact {

struct Speed {
  std::string source;  // what the figures come from
  // Seconds of each step of each segment's forward pass, one micro-batch; of a transformer one
  // segment, which stands for all blocks.
  std::vector<std::vector<double>> segments;
  double head = 0;              // seconds of the head's forward product
  double bytes_per_second = 0;  // of a copy, read and written
};

// Runs one block forward in the request's shape, on about 2048 tokens whatever the batch, and
// scales. Remembered in `folder`/speed.json; one that cannot be read is made anew, one that cannot
// be written is left. Empty folder: not remembered.
Speed measured_speed(const PlanRequest& request, const std::string& folder);

// From floating-point operations and bytes a second. Throws InputError where one is not positive.
Speed stated_speed(const PlanRequest& request, double products_per_second, double bytes_per_second);

// Of a network on the CPU, run forward on a batch of `samples`; scaled to micro-batches of `batch`.
// Remembered as `key`, which says all that the figures depend on beside samples and threads.
struct TimedNetwork {
  std::function<std::unique_ptr<Network>()> network;  // made where nothing is remembered
  std::function<Tensors(int64_t samples)> inputs;
  int64_t samples = 1, batch = 1;
  std::string key;
  std::vector<size_t> steps;  // of each segment
};
Speed measured_speed(const TimedNetwork& timed, const std::string& folder);

// What each step of each segment takes on one micro-batch; runs on the meta device.
std::vector<std::vector<Work>> forward_work(const StepRequest& request);
Speed stated_speed(const std::vector<std::vector<Work>>& work, double products_per_second,
                   double bytes_per_second);

// What a segment's backward pass runs again, given seconds and work of its steps.
struct Rebuilding {
  double seconds = 0, products = 0;
};
Rebuilding rebuilding(const Segment& segment, const std::vector<double>& seconds,
                      const std::vector<Work>& work);

// Seconds of a whole step that rebuilds nothing: forward and twice as much backward of all blocks,
// three products of the head, one pass over weights, gradients and moments: update_seconds.
double step_seconds(const PlanRequest& request, const Speed& speed, const StepMemory& memory);
double update_seconds(const StepMemory& memory, double bytes_per_second);

}  // namespace compact
