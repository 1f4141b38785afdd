# SPDX-License-Identifier: Apache-2.0
"""Hooks of the package on parameters and on optimizers' steps, which its own checks tell from those of others."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_OURS = "_compact_hook"  # an attribute of functions
_checks: set[Callable] = set()  # before the step of any optimizer


@contextlib.contextmanager
def hookable(p: torch.Tensor) -> Iterator[None]:
    """Lets a hook be put on a parameter; a frozen one has none, but may be trained later."""
    trained = p.requires_grad
    p.requires_grad_(True)
    try:
        yield
    finally:
        p.requires_grad_(trained)


def on_gradient(p: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls a function with a parameter whose gradient is whole; the handle takes it back."""
    setattr(hook, _OURS, True)
    with hookable(p):
        return p.register_post_accumulate_grad_hook(hook)


def has_hooks_of_others(p: torch.Tensor) -> bool:
    """Whether somebody else waits for a parameter's gradient."""
    behind = getattr(p, "_post_accumulate_grad_hooks", None) or {}
    return bool(p._backward_hooks) or any(not hasattr(hook, _OURS) for hook in behind.values())


def before_every_step(check: Callable[[torch.optim.Optimizer, tuple, dict], None]) -> None:
    """Calls a function before the step of every optimizer of the process, from now on."""
    if check not in _checks:
        register_optimizer_step_pre_hook(check)
        _checks.add(check)
