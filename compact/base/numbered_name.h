// SPDX-License-Identifier: Apache-2.0
// Names with the number of a block in a series: layers.3.mlp.norm.
#pragma once

#include <string>
#include <string_view>

namespace compact {

struct NumberedName {
  std::string series, number, rest;  // "layers", "3", "mlp.norm"; or all in `series`

  explicit NumberedName(std::string_view name);
  // The name with a star for the number, as people write patterns: layers.*.mlp.norm.
  std::string general() const;
};

}  // namespace compact
