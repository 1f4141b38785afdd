# SPDX-License-Identifier: Apache-2.0
"""Operations on the meta device with the memory that they take on the planned device."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base.library import ops, prepare_planning
from ..base.torch_private import has_kernel, let_meta_have_updates, take_meta_kernels

_WITH_NUMBERS = (
    *("mul", "multiply", "div", "divide", "true_divide", "mul_", "multiply_", "div_", "divide_", "true_divide_"),
    *("__mul__", "__rmul__", "__imul__", "__truediv__", "__itruediv__"),
)
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
    library.impl("_grouped_mm", _grouped_mm)  # LibTorch's reads how many rows each group has, torch's Python takes bfloat16 alone
    library.impl("masked_scatter_backward", _masked_scatter_backward)
    let_meta_have_updates(of_lists=device == "cuda")  # on a GPU optimizers update lists of tensors by default
    if device == "cpu":  # whose generator's states are tensors there, as checkpointing keeps them
        size = torch.get_rng_state().numel()
        torch.get_rng_state = lambda: torch.empty(size, dtype=torch.uint8, device="meta")
        torch.set_rng_state = lambda state: None
    for owner in (torch, torch.Tensor) if device == "cpu" else ():
        for name in _WITH_NUMBERS:
            if hasattr(owner, name):
                setattr(owner, name, _keeping_number(getattr(owner, name)))


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Products of experts, in the sizes and strides of their result."""
    groups = [offs.numel()] if a.dim() == b.dim() == 2 else [a.size(0)] if a.dim() == b.dim() == 3 else []
    dtype = out_dtype or a.dtype
    step = 16 // dtype.itemsize  # rows begin at multiples of 16 bytes
    row = (b.size(-1) + step - 1) // step * step
    sizes = (*groups, a.size(-2), b.size(-1))
    return torch.empty_strided(sizes, (a.size(-2) * row, row, 1)[-len(sizes) :], dtype=dtype, device=a.device)


def _masked_scatter_backward(gradient: torch.Tensor, mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Gradient of masked_scatter's source, in the source's sizes."""
    places = torch.empty(gradient.shape, dtype=torch.int64, device="meta")
    before = torch.empty_like(places)  # chosen ones before each
    del places, before
    return gradient.new_empty(sizes)


def _keeping_number(own: Callable) -> Callable:
    """An operation whose backward pass reads its operands: of a number it keeps a tensor of 8 bytes on the CPU."""

    def function(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args[:2], kwargs.get("input"), kwargs.get("other")) if isinstance(t, torch.Tensor)]
        if any(t.is_meta and t.requires_grad for t in tensors) and torch.is_grad_enabled():
            args = tuple(_number() if _is_number(a) else a for a in args[:2]) + args[2:]
            kwargs = {k: _number() if k in ("input", "other") and _is_number(a) else a for k, a in kwargs.items()}
        return own(*args, **kwargs)

    return function


def _is_number(a: Any) -> bool:
    return isinstance(a, (int, float)) and not isinstance(a, bool)


def _number() -> torch.Tensor:
    number = torch.empty((), dtype=torch.float64, device="meta")
    ops.make_number(number)
    return number


def _in_cpp(name: str) -> bool:
    return any(has_kernel(name, key) for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"))
