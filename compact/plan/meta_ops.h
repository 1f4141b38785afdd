// SPDX-License-Identifier: Apache-2.0
// Operations of LibTorch that training uses and that have no meta implementation in C++.
#pragma once

namespace compact {

// Registers the missing ones, once; allocations are those of the device that meta tensors stand for
// (see set_meta_device). Scratch memory of the CPU's attention is measured on one head.
void register_meta_ops();

}  // namespace compact
