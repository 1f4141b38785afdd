# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a module in a scope of saved_tensors(): of a network of which no layer is known, or around layers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..base.library import ops
from ..base.log import Notes
from ..base.policy import policy_text, presets
from ..base.torch_private import top_saved_tensors_hooks, under_transform
from .saved_tensors import saved_tensors, SavedTensorsReport


def around_layers(text: str) -> str:
    """What of a policy for layers holds what runs around them, which loses nothing; empty: nothing, since all is kept."""
    if ops.keeps_all(text):
        return ""
    heavy = None
    if any(ops.slot_budget(text)):
        heavy = ops.slot_treatment(text, "heavy")
    elif all(ops.slot_treatment(text, role) == "recompute" for role in ("qkv", "gate_up")):  # products of layers run again
        heavy = "recompute:budget=25%"
    return "slot role:cheap = recompute\n" + (f"slot role:heavy = {heavy}\n" if heavy else "")


class _Pass(threading.local):
    """The pass of this thread whose scope begins once it is needed."""

    begin: Callable[[], Any] | None = None


_pass = _Pass()


def begin_scope() -> None:
    """Begins the scope of the pass that runs, where it has one that waits: a layer runs its own forward."""
    if _pass.begin is not None and top_saved_tensors_hooks(True) is None:
        _pass.begin()
        _pass.begin = None


class ScopeState:
    """Runs the forward pass of a module around layers in a scope. A copy of the module has one of its own."""

    def __init__(self, policy: str, waits: bool, warns: bool = False):
        saved_tensors(policy)  # throws what of it cannot be done
        self.policy = policy
        self.waits = waits  # for begin_scope()
        self.warns = warns  # of what of the policy does nothing or is not reached
        self.calls = 0  # passes with gradients
        self._scopes: dict[int, saved_tensors] = {}  # by thread
        self._last: saved_tensors | None = None

    def __reduce__(self):
        return type(self), (self.policy, self.waits)

    @property
    def has_budget(self) -> bool:
        return any(ops.slot_budget(policy_text(self.policy)))

    @property
    def saved(self) -> SavedTensorsReport | None:
        """What the last pass saved; None: there was none."""
        return self._last.report() if self._last else None

    def run(self, module: nn.Module, own: Callable, args: tuple, kwargs: dict) -> Any:
        """The result of `own`, in a scope where one can be."""
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return own(module, *args, **kwargs)
        self._last = None
        if _pass.begin is not None:
            return own(module, *args, **kwargs)
        transform = under_transform()
        if transform or top_saved_tensors_hooks(True) is not None:
            self.note_own(module, "a transform of torch.func is in force" if transform else "other hooks of saved tensors are in force")
            return own(module, *args, **kwargs)
        thread = threading.get_ident()
        if thread not in self._scopes:
            self._scopes[thread] = saved_tensors(self.policy)
            self._scopes[thread].warns = self.warns
        scope = self._scopes[thread]
        scope.model = module
        try:
            with contextlib.ExitStack() as stack:
                self._begin_in(stack, scope)
                return own(module, *args, **kwargs)
        finally:
            scope.model = _pass.begin = None  # a model is freed without a collection

    def _begin_in(self, stack: contextlib.ExitStack, scope: saved_tensors) -> None:
        def begin() -> None:
            stack.enter_context(scope)
            self._last = scope
            self.calls += 1

        if self.waits:
            _pass.begin = begin
        else:
            begin()

    def note_own(self, module: nn.Module, reason: str) -> None:
        """Takes note of a pass that has no scope; layers inside of it say so themselves."""


class NetworkState(ScopeState):
    """What apply() keeps in a network of which no layer is known."""

    def __init__(self, policy: str, text: str, reason: str = "", planned: bool = False):
        if any(line.split()[:1] == ["grad"] for line in text.splitlines()):
            raise ValueError("policies with `grad` lines need layers that compact knows")
        if text == policy_text("recompute"):
            raise ValueError('blocks are rebuilt of layers that compact knows; "exact" rebuilds what it can in any network')
        super().__init__(policy if policy in presets() else text, False, not planned)  # a step that was planned fits, whatever part of it is reached
        self.text = text
        self.reason = reason  # why no layer is served by itself
        self.own: dict[str, int] = {}  # reason: passes with gradients outside of a scope
        self._notes = Notes()

    def __reduce__(self):
        return type(self), (self.policy, self.text, self.reason, not self.warns)

    def note_own(self, module: nn.Module, reason: str) -> None:
        self.own[reason] = self.own.get(reason, 0) + 1
        self._notes.say(f"a pass of {type(module).__name__} is not held by its policy: {reason}")
