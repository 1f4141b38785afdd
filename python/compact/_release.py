# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: a gradient is used and let go as soon as it is whole (LOMO, arXiv 2306.09782).

What would be another update than that of a step behind the backward pass is an error: a second gradient before
step(), gradients that are thrown away, settings that change between, and another optimizer for a parameter.
"""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ._checks import RELEASE_ALONE
from ._hooks import before_every_step, on_gradient
from ._shards import in_process_group

if TYPE_CHECKING:
    from ._optimizer import Optimizer

_taken = WeakIdKeyDictionary()  # by parameter: the Release that updates it, weakly, and the handle of its hook


def take(release: Release | None, params: list[torch.Tensor], from_others: bool = True) -> None:
    """Gives parameters to the optimizer of `release`; None: to one that updates in step().

    from_others: also those that another optimizer has, which is told so in its next step().
    """
    for p in params:
        before = _taken.get(p)
        owner = before[0]() if before is not None else None
        if owner is not None and owner is not release and owner.place_of(p) is not None:
            if not from_others:
                continue
            owner.lost = True
        if before is not None:
            before[1].remove()
            _taken.pop(p, None)
        if release is not None and (p.requires_grad or p.is_floating_point()) and not p.is_inference():
            release.listen(p)


class Release:
    """The updates of an optimizer that were made in this step."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = weakref.ref(optimizer)
        self._name = f"compact.optim.{type(optimizer).__name__}"
        self._updated: set[int] = set()  # parameters
        self._numbers: dict[int, dict[str, float]] = {}  # of groups: what updates were made with
        self._places: dict[int, tuple[int, int, int]] = {}  # of parameters: group, place among all, place in the group
        self.lost = False  # a parameter was given to another optimizer
        weakref.finalize(optimizer, _forget, weakref.ref(self)).atexit = False
        before_every_step(_check_optimizer)

    def listen(self, p: torch.Tensor) -> None:
        this = weakref.ref(self)
        _taken[p] = this, on_gradient(p, lambda p: _arrives(this(), p))

    def arrives(self, p: torch.Tensor) -> None:
        """Updates a parameter whose gradient is whole, and lets that go. Throws RuntimeError where it must not be used."""
        place = self.place_of(p)
        if place is None:
            return  # somebody has taken it out of the groups
        try:
            self._check_arrival(p)
            numbers = self._optimizer()._update_one(*place)
        finally:
            p.grad = None  # a refused one is not used by a later step, either
        self._updated.add(id(p))
        self._numbers.setdefault(place[0], numbers)
        self._check_numbers(place[0], numbers)

    def _check_arrival(self, p: torch.Tensor) -> None:
        if p.grad is None:
            self._fail(f"a hook has let go of the gradient of a parameter {tuple(p.shape)} before it was used (release=True)")
        if id(p) in self._updated:
            self._fail(
                f"a second gradient of a parameter {tuple(p.shape)} before step(): with release=True every backward pass is an "
                "update; step() ends a pass that was broken off, and gradients are accumulated with release=False"
            )
        if in_process_group():
            self._fail(RELEASE_ALONE)

    def place_of(self, p: torch.Tensor) -> tuple[int, int, int] | None:
        """A parameter's group, its place among all and in the group; None where no group has it."""
        groups = self._optimizer().param_groups
        number, _, i = self._places.get(id(p), (0, 0, 0))
        if not (number < len(groups) and i < len(groups[number]["params"]) and groups[number]["params"][i] is p):
            self._places = {id(q): place for *place, q in self._optimizer()._places()}
        return self._places.get(id(p))

    def _fail(self, text: str) -> None:
        raise RuntimeError(f"{self._name}: {text}")

    def _check_numbers(self, number: int, numbers: dict[str, float]) -> None:
        was = self._numbers[number]
        if was != numbers:
            changed = [f"{key} was {was[key]:g} and is {numbers[key]:g}" for key in was if was[key] != numbers[key]]
            self._fail(
                f"settings of group {number} have changed since the backward pass, which updated with them "
                f"(release=True): {', '.join(changed)}; set them before it"
            )

    def check_owner(self) -> None:
        """Throws RuntimeError where the parameters are another optimizer's."""
        if self.lost:
            self._fail("its parameters were given to an optimizer that was made later")

    def check_step(self, groups: list[dict[str, Any]]) -> None:
        """Throws RuntimeError or ValueError, with the step ended, where step() would end another one than the backward pass made."""
        self.check_owner()
        try:
            for number, group in enumerate(groups):
                self._check_gradients(number, group)
                if number in self._numbers:
                    self._check_numbers(number, self._optimizer()._check_group(group, number, ()))
        except (RuntimeError, ValueError):
            self.end_step()
            raise

    def _check_gradients(self, number: int, group: dict[str, Any]) -> None:
        again = [p for p in group["params"] if p.grad is not None and id(p) in self._updated]
        for p in again:
            p.grad = None
        if again:
            self._fail(
                f"a parameter {tuple(again[0].shape)} of group {number} has a gradient again behind its update "
                "(release=True), as DistributedDataParallel leaves one: release=False"
            )

    def check_given_up(self) -> None:
        """Throws RuntimeError where gradients are to be thrown away that were used."""
        if self._updated:
            self._fail(
                f"zero_grad() comes behind a backward pass that has updated {len(self._updated)} parameters "
                "(release=True), which cannot be taken back: step() ends a step, also one that an exception broke off; passes whose "
                "gradients are thrown away need release=False"
            )

    def end_step(self) -> None:
        self._updated.clear()
        self._numbers.clear()
        self._places.clear()  # groups may change until the next


def _arrives(release: Release | None, p: torch.Tensor) -> None:
    if release is not None:
        release.arrives(p)


def _forget(release: weakref.ref) -> None:
    """Takes an optimizer's hooks back, which is gone."""
    for p, (owner, hook) in list(_taken.items()):
        if owner is release or owner() is None:
            hook.remove()
            _taken.pop(p, None)


@torch.compiler.disable
def _check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Throws RuntimeError where an optimizer would update what another one updates inside the backward pass."""
    own = getattr(optimizer, "_release", None)
    for group in optimizer.param_groups if _taken else ():
        for p in group["params"]:
            owner = _taken[p][0]() if p in _taken else None
            if owner in (None, own) or not (p.requires_grad or p.grad is not None) or owner.place_of(p) is None:
                continue
            raise RuntimeError(
                f"{type(optimizer).__name__}: another optimizer ({owner._name}, release=True) updates a parameter {tuple(p.shape)}: "
                "delete it, and what holds it (its scheduler)"
            )
