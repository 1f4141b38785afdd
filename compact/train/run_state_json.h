// SPDX-License-Identifier: Apache-2.0
// The progress of a run as numbers, beside the tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compact/data/samples/dataset.h"

namespace compact {

struct RunState {
  int64_t step = 0;          // optimizer updates done
  int64_t micro = 0;         // micro-batches of the next update already in the gradients
  int64_t valid = 0;         // valid targets of that update, over all its micro-batches
  DataPosition window;       // where that update's data starts
  int64_t tokens = 0;        // targets trained on
  double step_loss = 0;      // of the micro-batches done
  double interval_loss = 0;  // sum over updates since the last line
  int64_t interval_steps = 0;
  double total_loss = 0;  // sum over all updates
  // For pairs, sums since the last line: rewards of chosen and of rejected answers, pairs whose
  // chosen one has the higher, pairs.
  std::vector<double> rewards;
  double seconds = 0;  // spent, over all parts of the run
  std::string matmul_path;
  std::string machine;    // on which the last bits of sums depend; of its last part
  std::string base;       // a digest of what adapters are trained beside
  std::string reference;  // the same of what pairs are compared with
  std::string bits;       // of slots that a policy leaves open, as chosen last
  int64_t ranks = 1;      // processes that it was trained by
  int64_t best_step = 0;  // whose model is kept as the best; 0: none
  double best_value = 0;  // of its metric
};

nlohmann::json run_state_to_json(const RunState& state);
// Throws InputError beginning with `where` on anything that run_state_to_json() does not write: a
// missing or mistyped value, a negative count.
RunState run_state_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace compact
