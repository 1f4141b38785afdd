// SPDX-License-Identifier: Apache-2.0
// The work that the processes of one run share beside training: taking turns, and checking that all
// of them run the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/config/config.h"
#include "compact/io/checkpoint.h"
#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/optim/optimizer.h"
#include "compact/parallel/group.h"

namespace compact {

// The device of a rank: of several GPUs the one of its number on its machine, which becomes the
// current one. Throws InputError where there are fewer.
at::Device rank_device(const Group& group, at::Device device);

// One after the other: rank 0, for as long as it takes, then all others at once.
void in_turn(Group& group, FunctionRef<void()> work);

// Rank 0 works, however long; throws GroupError in the others where it fails.
void lead(Group& group, FunctionRef<void()> work);

// All ranks begin where rank 0 begins. A run that a launcher starts `again` goes on from the
// newest checkpoint in its folder; without one it is refused, as any run is in a folder that is not
// empty.
void agree_on_start(Group& group, bool again, TrainConfig& config);

// Throws InputError on all ranks where one has other weights or optimizer state.
void check_same_tensors(Group& group, const Network& network, const Optimizer& optimizer);

// Throws InputError on all ranks where a rank has other options than rank 0, naming the first such
// rank and option; or other text of `what` (data, model, policy).
void check_same_options(Group& group, const TrainConfig& config);
void check_same(Group& group, const char* what, const std::string& text);

// While it lives every rank holds all weights, also those that only their owners hold otherwise.
class GatheredWeights {
 public:
  // Throws GroupError where a rank has gone.
  GatheredWeights(Group& group, const Network& network, Optimizer& optimizer);
  ~GatheredWeights() { optimizer_.scatter_weights(); }
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

 private:
  Optimizer& optimizer_;
};

// The parts of a checkpoint where the optimizer's state is dealt over the ranks. parts_of_others(),
// in rank 0: has all others write their parts into the folder while `own` runs, and throws
// InputError, naming the rank, where one cannot. write_own_part(), in the others: waits for rank 0
// to name the folder and writes this rank's part there; writes nothing where the name is empty.
std::vector<CheckpointFile> parts_of_others(Group& group, const std::filesystem::path& folder,
                                            FunctionRef<void()> own);
void write_own_part(Group& group, const Optimizer& optimizer);

// Gives all ranks the tensors of rank 0 that are not parameters: the statistics of batch norms,
// which every rank updates by its own micro-batches.
void share_statistics(Group& group, const Network& network);
// The same for all tensors of the network, parameters included.
void share_model(Group& group, const Network& network);

}  // namespace compact
