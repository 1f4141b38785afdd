// SPDX-License-Identifier: Apache-2.0
// Everything that a program of one's own needs of the library, which links CompAct::plan: policies,
// scopes for networks of torch::nn, segments and stages, models and their files, optimizers, plans
// under a budget, and the counting of bytes. A file that needs a part of it may include that alone.
#pragma once

#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/model_weights.h"
#include "compact/models/decoder.h"
#include "compact/models/families.h"
#include "compact/models/language_model.h"
#include "compact/networks/network.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "compact/ops/segments/segment.h"
#include "compact/ops/stages/map_stages.h"
#include "compact/ops/stages/stages.h"
#include "compact/optim/optimizer.h"
#include "compact/optim/schedules.h"
#include "compact/plan/request.h"
#include "compact/plan/search.h"
