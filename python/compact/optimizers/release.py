# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: a gradient is used and let go as soon as it is whole (LOMO, arXiv 2306.09782).

What would change the result of a step after the backward pass is an error: a second gradient before step(), gradients that are thrown
away, settings that change between backward() and step(), and the step of another optimizer for the same parameter.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..base.hooks import before_every_step, on_gradient
from ..base.shards import in_process_group
from .checks import RELEASE_ALONE

_owners = WeakIdKeyDictionary()  # by parameter: a weak reference to the Release that updates it, and the handle of its hook


def owner_of(p: torch.Tensor) -> Release | None:
    """Updates a parameter inside the backward pass."""
    owner = _owners[p][0]() if p in _owners else None
    return owner if owner is not None and owner.place_of(p) is not None else None


@torch.compiler.disable
def check_owners(optimizer: Any, *_: Any) -> None:
    """Throws RuntimeError where the optimizer has a parameter that another one updates inside the backward pass."""
    if not _owners:
        return
    inside = (optimizer, *(o for o in vars(optimizer).values() if isinstance(o, torch.optim.Optimizer)))  # wrappers have one
    own = next((o._release for o in inside if getattr(o, "_release", None) is not None), None)
    for group in optimizer.param_groups:
        for p in group["params"]:
            owner = owner_of(p) if p.requires_grad or p.grad is not None else None
            if owner not in (None, own):
                raise RuntimeError(
                    f"{type(optimizer).__name__}: another optimizer ({owner._name}, release=True) updates a parameter {tuple(p.shape)}: "
                    "delete it, and what holds it (its scheduler)"
                )


class Release:
    """The updates that an optimizer has made in the present step."""

    def __init__(self, optimizer: Any):  # the Optimizer that has it
        self._optimizer = weakref.ref(optimizer)
        self._name = f"compact.optim.{type(optimizer).__name__}"
        self._updated: set[int] = set()  # ids of parameters
        self._numbers: dict[int, dict[str, float]] = {}  # the settings of updates, by group
        self._places: dict[int, tuple[int, int, int]] = {}  # by id of a parameter: group, place among all, place in the group
        weakref.finalize(optimizer, _forget, weakref.ref(self)).atexit = False
        before_every_step(check_owners)

    def take(self, params: list[torch.Tensor]) -> None:
        """Updates these parameters from now on, in place of the optimizer that did."""
        this = weakref.ref(self)
        for p in params:
            if p in _owners:
                _owners.pop(p)[1].remove()
            if (p.requires_grad or p.is_floating_point()) and not p.is_inference():
                _owners[p] = this, on_gradient(p, lambda p: (release := this()) and release.arrives(p))

    def arrives(self, p: torch.Tensor) -> None:
        """Updates a parameter with its complete gradient, which is freed. Throws RuntimeError where it must not be used."""
        place = self.place_of(p)
        if place is None:
            return  # it was removed from the groups
        try:
            self._check_arrival(p)
            numbers = self._optimizer()._update_one(*place)
        finally:
            p.grad = None  # also where it was refused: a later step must not use it
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
        number, _, i = self._places.get(id(p), (len(groups), 0, 0))
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

    def check_step(self, groups: list[dict[str, Any]]) -> None:
        """Throws RuntimeError or ValueError, and ends the step, where gradients or settings differ from those of the backward pass."""
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
                f"a parameter {tuple(again[0].shape)} of group {number} has a gradient again after its update "
                "(release=True), as DistributedDataParallel leaves one: release=False"
            )

    def check_given_up(self) -> None:
        """Throws RuntimeError where gradients that were used are to be thrown away."""
        if self._updated:
            self._fail(
                f"zero_grad() comes after a backward pass that has updated {len(self._updated)} parameters "
                "(release=True), which cannot be taken back: step() ends a step, also one that an exception broke off; passes whose "
                "gradients are thrown away need release=False"
            )

    def end_step(self) -> None:
        self._updated.clear()
        self._numbers.clear()
        self._places.clear()  # groups may change until the next


def _forget(release: weakref.ref) -> None:
    """Removes the hooks of an optimizer that was deleted."""
    for p, (owner, hook) in list(_owners.items()):
        if owner is release or owner() is None:
            hook.remove()
            _owners.pop(p, None)
