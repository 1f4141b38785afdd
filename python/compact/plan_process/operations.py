# SPDX-License-Identifier: Apache-2.0
"""Operations on the meta device that take the memory that those of the planned device take."""
from __future__ import annotations

import torch

from ..base.library import prepare_planning
from ..base.torch_private import has_kernel, let_meta_have_updates, take_meta_kernels

_kept = []  # registrations live as long as this process


def use(device: str, gpu: tuple[str, int, int, int]) -> None:
    """From here on, in this process, the meta device stands for "cpu" or "cuda", a GPU of these figures.

    Torch's Python has implementations of its own for that device, which make tensors on the way that
    no kernel makes. Where LibTorch or compact has one in C++, that one is taken.
    """
    kernels = take_meta_kernels()
    prepare_planning(device, gpu)
    library = torch.library.Library("aten", "IMPL", "Meta")
    _kept.append(library)
    for op, function in kernels.items():
        if op.namespace == "aten" and not op.is_view and not _in_cpp(op.name()):
            library.impl(op, function)
    let_meta_have_updates(of_lists=device == "cuda")  # on a GPU optimizers update lists of tensors by default


def _in_cpp(name: str) -> bool:
    return any(has_kernel(name, key) for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"))
