# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: a gradient is used and let go as soon as it is whole."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ._shards import is_sharded

if TYPE_CHECKING:
    from ._optimizer import Optimizer


class Release:
    """The hooks of an optimizer's parameters, and which of them have been updated in this step."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = weakref.ref(optimizer)
        self._updated: set[int] = set()
        self._hooks: list[Any] = []
        weakref.finalize(optimizer, _remove, self._hooks).atexit = False

    def begin(self) -> None:
        """A step is over, or given up."""
        self._updated.clear()

    def hear(self, number: int, group: dict[str, Any]) -> None:
        """Lets the parameters of a group be updated when their gradients arrive."""
        optimizer = self._optimizer()
        for i, p in enumerate(group["params"]):
            if is_sharded(p):
                optimizer._fail(
                    f"{optimizer._place(group, number, i)} is split over ranks (a DTensor), whose gradients do not arrive one by "
                    "one: release=False"
                )
        this = weakref.ref(self)
        for i, p in enumerate(group["params"]):
            trained = p.requires_grad
            if not trained and not p.is_floating_point():
                continue
            p.requires_grad_(True)  # a frozen one has no hooks, but may be trained later
            self._hooks.append(p.register_post_accumulate_grad_hook(lambda p, i=i: this()._arrives(p, number, i)))
            p.requires_grad_(trained)

    def _arrives(self, p: torch.Tensor, number: int, i: int) -> None:
        """Updates a parameter whose gradient is whole. Throws RuntimeError where it must not be used yet."""
        optimizer = self._optimizer()
        name, where = f"compact.optim.{type(optimizer).__name__}", f"a parameter {tuple(p.shape)}"
        if id(p) in self._updated:
            raise RuntimeError(
                f"{name}: a second gradient of {where} before step(): with release=True every backward pass is an update; "
                "gradients are accumulated with release=False"
            )
        if p.grad is None:
            raise RuntimeError(f"{name}: another optimizer with release=True has used the gradient of {where}")
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"{name}: release=True updates before gradients are summed over ranks: in several processes release=False"
            )
        optimizer._update_one(number, i)
        self._updated.add(id(p))


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
