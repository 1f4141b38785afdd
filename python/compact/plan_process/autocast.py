# SPDX-License-Identifier: Apache-2.0
"""Autocast on the meta device: torch has it for devices that compute, by keys that meta tensors lack."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from ..base.torch_private import is_view

# Functions whose floating-point operands are cast to autocast's type, as torch lists them for the
# CPU and for CUDA (aten/src/ATen/autocast_mode.h), as far as models call them.
_LOWER = (
    (functional, "linear"), (functional, "conv1d"), (functional, "conv2d"), (functional, "conv3d"),
    (functional, "scaled_dot_product_attention"),
    (torch, "matmul"), (torch, "mm"), (torch, "bmm"), (torch, "addmm"), (torch, "baddbmm"), (torch, "einsum"),
    (torch.Tensor, "matmul"), (torch.Tensor, "__matmul__"), (torch.Tensor, "mm"), (torch.Tensor, "bmm"),
)  # fmt: skip
# On CUDA alone, to float32.
_FLOAT = (
    (functional, "layer_norm"), (functional, "softmax"), (functional, "log_softmax"), (functional, "cross_entropy"),
    (functional, "nll_loss"), (torch, "rsqrt"), (torch, "pow"), (torch.Tensor, "pow"), (torch.Tensor, "softmax"),
)  # fmt: skip

_kind = "cpu"
_copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of parameters, for as long as autocast is on


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(_cast(each, dtype) for each in x)
    if not isinstance(x, torch.Tensor) or x.device.type != "meta" or not x.is_floating_point() or x.dtype in (dtype, torch.float64):
        return x
    if x.is_leaf and x.requires_grad and x.dtype == torch.float32 and not is_view(x):
        if id(x) not in _copies:
            _copies[id(x)] = (x, x.to(dtype))
        return _copies[id(x)][1]
    return x.to(dtype)


def _casting(own: Callable, lower: bool) -> Callable:
    def function(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(_kind):
            return own(*args, **kwargs)
        dtype = torch.get_autocast_dtype(_kind) if lower else torch.float32
        cast = {k: _cast(v, dtype) for k, v in kwargs.items()}
        with torch.autocast(_kind, enabled=False):  # the functions that it calls do not cast again
            return own(*(_cast(x, dtype) for x in args), **cast)

    return function


def use(device: str) -> None:
    """From here on, in this process, autocast of "cpu" or "cuda" is that of the meta device, too."""
    global _kind
    _kind = device
    for table, lower in ((_LOWER, True), (_FLOAT, False)) if device == "cuda" else ((_LOWER, True),):
        for owner, name in table:
            setattr(owner, name, _casting(getattr(owner, name), lower))
    leave = torch.autocast.__exit__

    def left(self: torch.autocast, *error: Any) -> Any:
        result = leave(self, *error)
        if not torch.is_autocast_enabled(_kind):  # checkpoints enter and leave it inside the backward pass
            _copies.clear()
        return result

    torch.autocast.__exit__ = left


@contextlib.contextmanager
def autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast to a type, with copies of parameters that live until its end; None: no autocast."""
    with torch.autocast(_kind, dtype) if dtype else contextlib.nullcontext():
        yield
