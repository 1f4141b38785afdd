// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/options.h"

#include <cmath>

#include "compact/base/check.h"

namespace compact {

void check_options(const OptimizerOptions& o) {
  const auto fraction = [](const char* name, double x) {
    COMPACT_CHECK(x >= 0 && x < 1, "[optimizer] ", name, " must be in [0, 1), is ", x);
  };
  fraction("beta1", o.beta1);
  fraction("beta2", o.beta2);
  fraction("momentum", o.momentum);
  fraction("momentum of SGD", o.sgd_momentum);
  COMPACT_CHECK(o.eps > 0 && std::isfinite(o.eps), "[optimizer] eps must be positive, is ", o.eps);
  COMPACT_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay),
                "[optimizer] weight decay must not be negative, is ", o.weight_decay);
  COMPACT_CHECK(o.hidden_lr_factor >= 0 && std::isfinite(o.hidden_lr_factor),
                "[optimizer] learning rate of hidden matrices must not be negative, its factor is ",
                o.hidden_lr_factor);
}

}  // namespace compact
