// SPDX-License-Identifier: Apache-2.0
// Decoders of LLaMA's kind (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query
// attention, SwiGLU; with biases, norms of heads and multipliers as the configuration says.
// Parameters and slots are those of gated_decoder.h.
#pragma once

#include "compact/models/gated_decoder.h"
#include "compact/models/llama/config.h"

namespace compact {

class Llama final : public GatedDecoder {
 public:
  // Weights normal(0, initializer_range) as in Hugging Face, norms 1, biases 0. Throws InputError
  // where the policy names slots or parameters that the model lacks, or treatments that cannot
  // be.
  Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options);
  Llama(const Llama&) = delete;

  const LlamaConfig& config() const { return config_; }

 private:
  LlamaConfig config_;
};

}  // namespace compact
