// SPDX-License-Identifier: Apache-2.0
// The types of projection, one definition each in dense.cpp and srht.cpp; the table in
// projections.cpp names them.
#pragma once

#include "compact/codecs/projection.h"

namespace compact {

extern const ProjectionInfo gaussian_projection;
extern const ProjectionInfo rademacher_projection;
extern const ProjectionInfo sparse_projection;
extern const ProjectionInfo srht_projection;

}  // namespace compact
