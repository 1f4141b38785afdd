// SPDX-License-Identifier: Apache-2.0
// An array in numpy's form.
#include <ATen/ATen.h>

#include "compact/data/files/npy.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  fuzz::accepted([&] { parse_npy(bytes, "array"); });
}
