// SPDX-License-Identifier: Apache-2.0
// Checks that the configurations of all models share. Each throws InputError "`where`: KEY must
// ...".
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace compact {

template <class T>
using KeyedValues = std::vector<std::pair<const char*, T>>;

// From 1 to 2^31 - 1; num_hidden_layers and n_layer to 4096.
void check_sizes(const KeyedValues<int64_t>& sizes, std::string_view where);
void check_positive(const KeyedValues<double>& values, std::string_view where);
// At least 0 and below 1.
void check_dropouts(const KeyedValues<double>& values, std::string_view where);
// From 0 to vocabulary - 1.
void check_token(const char* key, int64_t id, int64_t vocabulary, std::string_view where);
// Hidden size must be a multiple of heads.
void check_heads(int64_t hidden, int64_t heads, std::string_view where);
// The same; heads must also be a multiple of kv_heads, and head_dim even, since rotary positions
// turn pairs.
void check_rotary_heads(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        std::string_view where);

}  // namespace compact
