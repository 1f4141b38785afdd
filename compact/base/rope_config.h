// SPDX-License-Identifier: Apache-2.0
// How a decoder turns queries and keys by their positions, in the words of Hugging Face's
// `rope_parameters`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

enum class RopeKind : uint8_t {
  kDefault,   // position * theta^(-2i / width) (Su et al. 2021)
  kLinear,    // all angles divided by factor (Chen et al. 2023)
  kDynamic,   // theta grows with sequences beyond max_position_embeddings (NTK)
  kYarn,      // slow angles divided by factor, quick ones as they are (Peng et al. 2023)
  kLongrope,  // a factor for each angle, others beyond original_length (Ding et al. 2024)
  kLlama3     // like yarn, with limits given as wavelengths (Llama 3.1)
};
// default, linear, dynamic, yarn, longrope, llama3. Throws InputError on another name.
RopeKind rope_kind_of(std::string_view name, std::string_view where);
const char* name_of(RopeKind kind);

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double partial = 1;  // the part of a head that is rotated
  // linear, dynamic, llama3; yarn and longrope, where max_position_embeddings / original_length is
  // the default
  std::optional<double> factor;
  int64_t original_length = 0;  // yarn, longrope, llama3: length of the first training
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3: where angles are changed
  double beta_fast = 32, beta_slow = 1;              // yarn: the same, as numbers of turns
  bool truncate = true;                              // yarn: rounds these to whole angles
  std::optional<double> mscale, mscale_all_dim;      // yarn: give attention_factor
  std::optional<double> attention_factor;            // yarn, longrope: of sines and cosines
  std::vector<double> short_factor, long_factor;     // longrope: of each angle

  bool operator==(const RopeConfig&) const = default;
};

// How many elements of a head of this width are rotated.
int64_t rotated_width(const RopeConfig& rope, int64_t head_dim);

// Throws InputError, beginning with `where`, on numbers that are not finite, contradict each other
// or do not fit heads of this width.
void check_rope_config(const RopeConfig& rope, int64_t head_dim, std::string_view where);

}  // namespace compact
