# SPDX-License-Identifier: Apache-2.0
"""Operations on the meta device that take the memory that those of the planned device take."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base.library import ops, prepare_planning
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
    for owner in (torch, torch.Tensor) if device == "cpu" else ():
        for name in ("mul", "multiply", "div", "divide", "true_divide", "__mul__", "__rmul__", "__truediv__"):
            if hasattr(owner, name):
                setattr(owner, name, _keeping_number(getattr(owner, name)))


def _keeping_number(own: Callable) -> Callable:
    """An operation whose backward pass reads its second operand: of a number it keeps a tensor of 8 bytes on the CPU."""

    def function(x: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if type(other) in (int, float) and isinstance(x, torch.Tensor) and x.is_meta and x.requires_grad and torch.is_grad_enabled():
            other = torch.empty((), dtype=torch.float64, device="meta")
            ops.make_number(other)
        return own(x, other, *args, **kwargs)

    return function


def _in_cpp(name: str) -> bool:
    return any(has_kernel(name, key) for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"))
