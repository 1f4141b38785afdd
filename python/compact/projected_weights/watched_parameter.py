# SPDX-License-Identifier: Apache-2.0
"""Parameters whose gradient only their layer can take: any other use in a graph, as a penalty of model.parameters(), is an error.

Where gradients are on, an operation outside of the layer reads another leaf with the parameter's memory, whose gradient raises the
error in the backward pass. Functions that ask for the parameter itself, or change it, get the parameter.
"""
from __future__ import annotations

from typing import Any

import torch

from ..base.torch_private import pytree, under_transform, without_torch_function

_VIEWS = {getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag")}
_ITSELF = frozenset(
    {"__get__", "__set__", "__delete__", "__setitem__", "__deepcopy__", "__reduce_ex__", "__repr__", "detach", "register_hook"}
    | {"register_post_accumulate_grad_hook", "retain_grad", "backward", "grad", "numpy"}
)


class Watched(torch.nn.Parameter):
    """A parameter whose uses outside of its layer are errors while is_watched()."""

    def is_watched(self) -> bool:
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with without_torch_function():
            if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not _needs_parameter(function, args) and not under_transform():
                args, kwargs = pytree.tree_map_only(Watched, _leaf, (args, kwargs))
            return function(*args, **kwargs)


def _needs_parameter(function: Any, args: tuple) -> bool:
    name = getattr(function, "__name__", "")
    if name in _ITSELF:
        return function not in _VIEWS
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place and bool(args) and isinstance(args[0], Watched)


def _leaf(p: Watched) -> torch.Tensor:
    if not p.is_watched():
        return p
    leaf = p.detach().requires_grad_()
    leaf.register_hook(_refuse)
    return leaf


def _refuse(gradient: torch.Tensor) -> None:
    raise RuntimeError(
        f"compact: a parameter {tuple(gradient.shape)} with a projected gradient has a use outside of its layer, as in a penalty "
        "of parameters(), whose gradient would be lost: read it as `p.detach()` or under torch.no_grad(), or apply a policy without "
        "a `grad` line for it"
    )
