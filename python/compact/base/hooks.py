# SPDX-License-Identifier: Apache-2.0
"""Hooks of the package on parameters and on steps of optimizers; on parameters they can be told from hooks of other code."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .torch_private import gradient_hooks_of

_OURS = "_compact_hook"  # an attribute of functions
_checks: set[Callable] = set()  # before the step of any optimizer


@contextlib.contextmanager
def hookable(p: torch.Tensor) -> Iterator[None]:
    """Lets a hook be registered on a parameter that is frozen now and may be trained later."""
    trained = p.requires_grad
    p.requires_grad_(True)
    try:
        yield
    finally:
        p.requires_grad_(trained)


def on_gradient(p: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls a function with a parameter as soon as its gradient is complete; the returned handle removes the hook."""
    setattr(hook, _OURS, True)
    with hookable(p):
        return p.register_post_accumulate_grad_hook(hook)


def has_hooks_of_others(p: torch.Tensor) -> bool:
    """Whether code outside of the package has a hook for a parameter's gradient."""
    return any(not hasattr(hook, _OURS) for hook in gradient_hooks_of(p))


def before_every_step(check: Callable[[torch.optim.Optimizer, tuple, dict], None]) -> None:
    """Calls a function before the step of every optimizer of the process, from now on."""
    if check not in _checks:
        register_optimizer_step_pre_hook(check)
        _checks.add(check)
