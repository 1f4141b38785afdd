// SPDX-License-Identifier: Apache-2.0
// Weights that lie outside of the device, and are on it for as long as a segment reads them.
// Meanwhile a GPU gets those of the next segment, and on a CPU the system reads their files.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "compact/codecs/memory_place.h"
#include "compact/codecs/weight_home.h"

namespace compact {

class SideCopy;

// Puts the memory of a tensor, which shares it with no other, into a place (see zeros_in), with its
// values. All that reads or writes the tensor goes on, there.
void move_to(MemoryPlace place, const at::Tensor& t, const std::string& folder);

class PlacedWeights final : public WeightHome {
 public:
  PlacedWeights();
  ~PlacedWeights() override;
  // Adds a group: tensors whose memory is outside, and none else's. Returns its number. Groups are
  // added in the order of the forward pass.
  int add(std::vector<at::Tensor> weights);

  // Between fetch() and release() the tensors have a copy for memory, which nothing may write to.
  void fetch(int group, bool backward) override;
  void release(int group) override;

 private:
  struct Copy {
    at::Tensor here;
    std::unique_ptr<SideCopy> coming;  // null: it is here
    int64_t version;                   // of the values that it has
  };
  struct Group {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> away = {};  // while there are readers: what has the memory outside
    int readers = 0;
  };
  std::vector<Copy> begin(const Group& group) const;
  bool is_current(const Group& group) const;

  std::mutex mutex_;  // of readers
  std::vector<Group> groups_;
  int next_ = -1;  // the group of which copies were begun ahead
  std::vector<Copy> ahead_;
};

}  // namespace compact
