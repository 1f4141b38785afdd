// SPDX-License-Identifier: Apache-2.0
// Silences LibTorch's warnings on this thread while it lives, where we cause them on purpose.
#pragma once

#include <c10/util/Exception.h>

namespace compact {

class QuietWarnings {
 private:
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_{&silent_};
};

}  // namespace compact
