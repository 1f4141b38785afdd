# SPDX-License-Identifier: Apache-2.0
"""The functions of torch that layers and losses call and that others may replace, as packages of faster attention do."""
from __future__ import annotations

import torch
from torch.nn import functional

from .type_names import is_own_code, origin_of

_NAMES = ("cross_entropy", "dropout", "gelu", "layer_norm", "linear", "pad", "scaled_dot_product_attention", "silu", "softmax")
_ALL = [(functional, name) for name in _NAMES] + [(torch, name) for name in ("addmm", "cat", "matmul", "rsqrt")]
_FOUND = [(owner, name, getattr(owner, name)) for owner, name in _ALL]
# None: it was replaced before.
_OWN = [(owner, name, found if is_own_code(found) and found.__name__ == name else None) for owner, name, found in _FOUND]
GELU = functional.gelu


def replaced_function() -> str | None:
    """Which function, if any, is not torch's own. Plans have some in their place that count memory."""
    for owner, name, own in _OWN:
        found = getattr(owner, name)
        if found is not own and not origin_of(found).startswith("compact.plan_process."):
            return f"{name} of {owner.__name__} was replaced"
    return None
