# SPDX-License-Identifier: Apache-2.0
"""Parameters that take the gradients of weights in a random projection (CompAct, arXiv 2410.15352).

A weight [out, in] whose gradient is projected is frozen, and beside it stands a parameter `carrier`,
zeros [out, rank]. Its gradient is that of the weight times the projection, its moments are as small,
and compact.optim adds its update to the weight through the projection, so that it is zero whenever
anybody looks at it. state_dict() does not write it.
"""
from __future__ import annotations

import copy
from typing import Any

import torch
from torch import distributed, nn

NAME = "carrier"
_FROZEN = "_compact_frozen"  # the attribute of a module whose weight was trainable


class Carrier(nn.Parameter):
    """Zeros that take a gradient; copies are of the copied weight."""

    weight: nn.Parameter  # what the update is added to
    projected: Any  # what it is projected with, that of all weights that read the same input
    transposed: bool  # the weight is [in, out]
    zero_at: int  # the version at which it was seen to be zero

    __torch_function__ = torch._C._disabled_torch_function_impl

    def is_zero(self) -> bool:
        """Whether nobody has changed it; values are read only where somebody wrote to it."""
        if self._version != self.zero_at:
            if bool(self.detach().any()):
                return False
            self.zero_at = self._version
        return True

    def __reduce_ex__(self, protocol: int) -> tuple:
        made = (tuple(self.shape), self.dtype, self.device, self.requires_grad)
        return _zeros, made, {k: v for k, v in self.__dict__.items() if k != "zero_at"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict) -> Carrier:
        result = _zeros(tuple(self.shape), self.dtype, self.device, self.requires_grad)
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "zero_at"}, memo))
        result.zero_at = result._version
        return result


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, requires_grad: bool) -> Carrier:
    # One zero, seen from everywhere; but several processes write to what they share at the start.
    if distributed.is_available() and distributed.is_initialized():
        values = torch.zeros(shape, dtype=dtype, device=device)
    else:
        values = torch.zeros((1, 1), dtype=dtype, device=device).expand(shape)
    carrier = Carrier(values, requires_grad=requires_grad)
    carrier.zero_at = carrier._version
    return carrier


def add(module: nn.Module, projected: Any, transposed: bool) -> None:
    """Freezes the weight of a module and gives it a carrier."""
    weight = module.weight
    out = weight.shape[1 if transposed else 0]
    carrier = _zeros((out, projected.rank()), weight.dtype, weight.device, weight.requires_grad)
    carrier.weight, carrier.projected, carrier.transposed = weight, projected, transposed
    module.__dict__[_FROZEN] = weight.requires_grad
    weight.requires_grad_(False)
    module.register_parameter(NAME, carrier)
    module._register_state_dict_hook(_without_carrier)
    module.register_load_state_dict_post_hook(_none_is_missing)


def take_back(module: nn.Module) -> None:
    """As it was before add(); does nothing where there was none."""
    if _FROZEN not in module.__dict__:
        return
    module.weight.requires_grad_(module.__dict__.pop(_FROZEN))
    del module._parameters[NAME]
    for hooks in (module._state_dict_hooks, module._load_state_dict_post_hooks):
        for key in [key for key, hook in hooks.items() if hook in (_without_carrier, _none_is_missing)]:
            del hooks[key]


def _without_carrier(module: nn.Module, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    state_dict.pop(prefix + NAME, None)


def _none_is_missing(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [key for key in keys.missing_keys if key.rsplit(".", 1)[-1] != NAME]
