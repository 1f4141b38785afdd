# SPDX-License-Identifier: Apache-2.0
"""The functions of torch that layers and losses call and that others may replace, as packages of faster attention do."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .type_names import is_own_code, origin_of

_FUNCTIONAL = ("dropout", "gelu", "layer_norm", "linear", "scaled_dot_product_attention", "silu", "softmax")
OF_LAYERS = [(functional, name) for name in _FUNCTIONAL] + [(torch, name) for name in ("addmm", "cat", "matmul", "rsqrt")]
OF_LOSSES = [(functional, name) for name in ("cross_entropy", "linear", "pad")]
_own: dict[str, Callable] = {}


def own_function(owner: Any, name: str) -> Callable | None:
    """Torch's own function of a name; None: it has been replaced since before it was asked for."""
    if name not in _own:
        found = getattr(owner, name)
        if not is_own_code(found) or found.__name__ != name:
            return None
        _own[name] = found
    return _own[name]


for _each in OF_LAYERS + OF_LOSSES:
    own_function(*_each)


def replaced_function(functions: list[tuple[Any, str]]) -> str | None:
    """Which of these functions, if any, is not torch's own. Plans have some in their place that count memory."""
    for owner, name in functions:
        found = getattr(owner, name)
        if found is not own_function(owner, name) and not origin_of(found).startswith("compact.plan_process."):
            return f"{name} of {owner.__name__} was replaced"
    return None
