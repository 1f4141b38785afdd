# SPDX-License-Identifier: Apache-2.0
"""Operations on the meta device that take the memory that those of the planned device take."""
from __future__ import annotations

import sys

import torch
import torch._meta_registrations as registered

from .. import _library

_kept = []  # registrations live as long as this process


def use(device: str, gpu: tuple[str, int, int, int]) -> None:
    """From here on, in this process, the meta device stands for "cpu" or "cuda", a GPU of these figures.

    Torch's Python has implementations of its own for that device, which make tensors on the way that
    no kernel makes. Where LibTorch or compact has one in C++, that one is taken.
    """
    registered._meta_lib_dont_use_me_use_register_meta._destroy()
    _library.prepare_planning(device, gpu)
    library = torch.library.Library("aten", "IMPL", "Meta")
    _kept.append(library)
    table = {}
    for kind in ("meta", "post_autograd", "pre_autograd"):
        for op, function in registered.global_decomposition_table[kind].items():
            table.setdefault(op, function)
    for op, function in table.items():
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" and not op.is_view and not _in_cpp(op.name()):
            library.impl(op, function)
    # Optimizers may have fused updates there, and on a GPU update lists of tensors unless they are told otherwise.
    optimizers = sys.modules["torch.optim.optimizer"]
    fused, lists = optimizers._get_fused_kernels_supported_devices, optimizers._get_foreach_kernels_supported_devices
    optimizers._get_fused_kernels_supported_devices = lambda: [*fused(), "meta"]
    if device == "cuda":
        optimizers._get_foreach_kernels_supported_devices = lambda: [*lists(), "meta"]


def _in_cpp(name: str) -> bool:
    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)
