// SPDX-License-Identifier: Apache-2.0
// Operations of LibTorch on the meta device: those that training uses and that have no meta
// implementation in C++, and those whose scratch memory is to be counted.
#pragma once

namespace compact {

// Registers them, once for the process; they allocate as on the planned device (set_meta_device).
// The scratch memory of the CPU's attention is measured on one head,
// that of its matrix products on the products themselves, each size once, cut to 4096.
void register_meta_ops();

}  // namespace compact
