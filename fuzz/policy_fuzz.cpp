// SPDX-License-Identifier: Apache-2.0
// Lines of a policy, and specs alone. What is taken has a text that parses to the same.
#include "compact/base/spec.h"
#include "compact/ops/policy/policy.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  if (fuzz::choice(bytes, 2) == 0) {
    fuzz::accepted([&] {
      const std::vector<Spec> chain = Spec::parse_chain(bytes);
      fuzz::require(Spec::parse_chain(Spec::chain_str(chain)) == chain);
    });
  } else {
    fuzz::accepted([&] {
      Policy policy = Policy::parse(bytes, "policy");
      const std::string text = policy.str();
      fuzz::require(Policy::parse(text, "again").str() == text);
      policy.slot("layers.0.mlp.gate_up", Role::kGateUp);
      policy.moment("layers.0.mlp.gate_up");
      fuzz::accepted([&] { policy.fewest_open_bits(); });
      policy.halve_bits();
    });
  }
}
