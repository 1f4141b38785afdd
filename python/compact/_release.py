# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: a gradient is used and let go as soon as it is whole (LOMO, arXiv 2306.09782).

What would be another update than that of a step behind the backward pass is an error: a second gradient before
step(), gradients that are thrown away, settings that change between, and another optimizer for a parameter.
"""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from ._carriers import hookable
from ._shards import is_sharded

if TYPE_CHECKING:
    from ._optimizer import Optimizer

_taken = WeakIdKeyDictionary()  # by parameter: the Release that updates it, weakly, and the handle of its hook
_guarded = False


def why_not_released(params: list[torch.Tensor]) -> str | None:
    """Why parameters cannot be updated inside the backward pass."""
    if any(is_sharded(p) for p in params):
        return "weights that are split over ranks (DTensors) have gradients that do not arrive one by one: release=False"
    return None


def take(release: Release | None, params: list[torch.Tensor]) -> None:
    """Gives parameters to the optimizer of `release`, from one that had them before; None: to one that updates in step()."""
    for p in params:
        before = _taken.pop(p, None)
        if before is not None:
            before[1].remove()
            if before[0]() not in (None, release):
                before[0]().lost = True
        if release is not None and (p.requires_grad or p.is_floating_point()):
            release.listen(p)


class Release:
    """The updates of an optimizer that were made in this step."""

    def __init__(self, optimizer: Optimizer):
        global _guarded
        self._optimizer = weakref.ref(optimizer)
        self._name = f"compact.optim.{type(optimizer).__name__}"
        self._updated: set[int] = set()  # parameters
        self._numbers: dict[int, dict[str, float]] = {}  # of groups: what updates were made with
        self._places: dict[int, tuple[int, int, int]] = {}  # of parameters: group, place among all, place in the group
        self.lost = False  # a parameter was given to another optimizer
        weakref.finalize(optimizer, _forget, weakref.ref(self)).atexit = False
        if not _guarded:
            register_optimizer_step_pre_hook(_check_optimizer)
            _guarded = True

    def listen(self, p: torch.Tensor) -> None:
        this = weakref.ref(self)
        with hookable(p):
            _taken[p] = this, p.register_post_accumulate_grad_hook(lambda p: _arrives(this(), p))

    def arrives(self, p: torch.Tensor) -> None:
        """Updates a parameter whose gradient is whole. Throws RuntimeError where it must not be used yet."""
        optimizer = self._optimizer()
        place = self._place_of(p)
        if place is None:
            return  # somebody has taken it out of the groups
        if id(p) in self._updated:
            p.grad = None
            raise RuntimeError(
                f"{self._name}: a second gradient of a parameter {tuple(p.shape)} before step(): with release=True every backward "
                "pass is an update; gradients are accumulated with release=False"
            )
        if distributed.is_available() and distributed.is_initialized():
            raise RuntimeError(
                f"{self._name}: release=True updates before gradients are summed over ranks: in a process group release=False"
            )
        numbers = optimizer._update_one(*place)
        self._updated.add(id(p))
        self._numbers.setdefault(place[0], numbers)
        self._check_numbers(place[0], numbers)

    def _place_of(self, p: torch.Tensor) -> tuple[int, int, int] | None:
        groups = self._optimizer().param_groups
        number, _, i = self._places.get(id(p), (0, 0, 0))
        if not (number < len(groups) and i < len(groups[number]["params"]) and groups[number]["params"][i] is p):
            rows = [(q, number, i) for number, group in enumerate(groups) for i, q in enumerate(group["params"])]
            self._places = {id(q): (number, index, i) for index, (q, number, i) in enumerate(rows)}
        return self._places.get(id(p))

    def _check_numbers(self, number: int, numbers: dict[str, float]) -> None:
        was = self._numbers[number]
        if was != numbers:
            changed = [f"{key} was {was[key]:g} and is {numbers[key]:g}" for key in was if was[key] != numbers[key]]
            raise RuntimeError(
                f"{self._name}: settings of group {number} have changed since the backward pass, which updated with them "
                f"(release=True): {', '.join(changed)}; set them before it"
            )

    def check_step(self, groups: list[dict[str, Any]]) -> None:
        """Throws RuntimeError where step() would end another step than the backward pass made."""
        if self.lost:
            raise RuntimeError(f"{self._name}: its parameters were given to an optimizer that was made later")
        for number, group in enumerate(groups):
            again = [p for p in group["params"] if p.grad is not None and id(p) in self._updated]
            if again:
                raise RuntimeError(
                    f"{self._name}: a parameter {tuple(again[0].shape)} of group {number} has a gradient again behind its update "
                    "(release=True), as DistributedDataParallel leaves one: release=False"
                )
            if number in self._numbers:
                self._check_numbers(number, self._optimizer()._check_group(group, number, ()))

    def check_given_up(self) -> None:
        """Throws RuntimeError where gradients are to be thrown away that were used."""
        if self._updated:
            raise RuntimeError(
                f"{self._name}: zero_grad() comes behind a backward pass that has updated {len(self._updated)} parameters "
                "(release=True), which cannot be taken back: step() ends a step, also one that an exception broke off; passes whose "
                "gradients are thrown away need release=False"
            )

    def end_step(self) -> None:
        self._updated.clear()
        self._numbers.clear()


def _arrives(release: Release | None, p: torch.Tensor) -> None:
    if release is not None:
        release.arrives(p)


def _forget(release: weakref.ref) -> None:
    """Takes an optimizer's hooks back, which is gone."""
    for p, (owner, hook) in list(_taken.items()):
        if owner is release or owner() is None:
            hook.remove()
            del _taken[p]


@torch.compiler.disable
def _check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Throws RuntimeError where an optimizer would update what another one updates inside the backward pass."""
    own = getattr(optimizer, "_release", None)
    for group in optimizer.param_groups if _taken else ():
        for p in group["params"]:
            owner = _taken.get(p, (lambda: None,))[0]()
            if owner is not None and owner is not own:
                raise RuntimeError(
                    f"{type(optimizer).__name__}: another optimizer ({owner._name}, release=True) updates a parameter {tuple(p.shape)}: "
                    "delete it, and what holds it (its scheduler), or make it behind this one"
                )
