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
from ..base.torch_private import disabled_saved_tensors_hooks, pytree, running_backward_pass, top_saved_tensors_hooks, under_transform
from .saved_tensors import saved_tensors, SavedTensorsReport


def around_layers(text: str) -> str:
    """The lossless scope policy for code outside served layers; empty if the layer policy keeps everything."""
    if ops.keeps_all(text):
        return ""
    heavy = None
    if any(ops.slot_budget(text)):
        heavy = ops.slot_treatment(text, "heavy")
    elif all(ops.slot_treatment(text, role).startswith(("recompute", "tile")) for role in ("qkv", "gate_up")):  # products of layers run again
        heavy = "recompute:budget=25%"
    return "slot role:cheap = recompute\n" + (f"slot role:heavy = {heavy}\n" if heavy else "")


class _Pass(threading.local):
    """The pass of this thread whose scope begins once it is needed."""

    begin: Callable[[], Any] | None = None
    notes: Notes | None = None  # of the model, by which its layers are known


_pass = _Pass()


def begin_scope(notes: Notes) -> None:
    """Begins the scope of the pass that runs, where it is of the same model and waits: a layer runs its own forward."""
    # A scope that began inside a backward pass would end with it.
    if _pass.begin is not None and _pass.notes is notes and _no_scope(notes) is None and running_backward_pass() == -1:
        begin, _pass.begin = _pass.begin, None
        begin()


def _no_scope(notes: Notes) -> str | None:
    """Why no scope of a model can begin."""
    if under_transform():
        return "a transform of torch.func is in force"
    if disabled_saved_tensors_hooks() is not None:
        return "hooks of saved tensors are disabled"
    top = top_saved_tensors_hooks(True)
    around = top and getattr(top[0], "around", None)  # of another model: this one's are called inside
    return "other hooks of saved tensors are in force" if top and (not around or around is notes) else None


class ScopeState:
    """Runs the forward pass of a module around layers in a scope. A copy of the module has one of its own."""

    around = True  # models inside of it may have scopes of their own

    def __init__(self, policy: str, waits: bool, notes: Notes, warns: bool = False):
        saved_tensors(policy)  # throws what of it cannot be done
        self.policy, self.notes = policy, notes
        self.waits = waits  # for begin_scope()
        self.warns = warns  # about lines of the policy that do nothing, and a part that is not reached
        self.calls = 0  # passes with gradients
        self._scopes: dict[int, saved_tensors] = {}  # by thread
        self._last: saved_tensors | None = None

    def __reduce__(self):
        return type(self), (self.policy, self.waits, self.notes)

    @property
    def has_budget(self) -> bool:
        return any(ops.slot_budget(policy_text(self.policy)))

    @property
    def saved(self) -> SavedTensorsReport | None:
        """The tensors that the last pass saved; None before the first."""
        return self._last.report() if self._last else None

    def run(self, module: nn.Module, own: Callable, args: tuple, kwargs: dict) -> Any:
        """The result of `own`, in a scope where one can be."""
        if not torch.is_grad_enabled():
            return own(module, *args, **kwargs)
        self._last = None
        if _pass.begin is not None and _pass.notes is self.notes:
            return own(module, *args, **kwargs)
        if reason := _no_scope(self.notes):
            self.note_own(module, reason)
            return own(module, *args, **kwargs)
        thread = threading.get_ident()
        if thread not in self._scopes:
            scope = saved_tensors(self.policy)
            scope.warns = self.warns and not self._scopes
            self._scopes[thread] = scope
            self._scopes[thread].let_others_in(self.notes if self.around else None)
        scope, before = self._scopes[thread], (_pass.begin, _pass.notes)
        scope.model = module
        # Leaves alone: what another network has made is held for its backward pass.
        scope.given = [t for t in pytree.tree_leaves((args, kwargs)) if type(t) is torch.Tensor and t.is_leaf and t.layout is torch.strided]
        try:
            with contextlib.ExitStack() as stack:
                self._begin_in(stack, scope)
                return own(module, *args, **kwargs)
        finally:
            scope.model, scope.given = None, []  # a model is freed without a collection
            _pass.begin, _pass.notes = before

    def _begin_in(self, stack: contextlib.ExitStack, scope: saved_tensors) -> None:
        def begin() -> None:
            stack.enter_context(scope)
            self._last = scope
            self.calls += 1

        if self.waits:
            _pass.begin, _pass.notes = begin, self.notes
        else:
            _pass.begin = None
            begin()

    def note_own(self, module: nn.Module, reason: str) -> None:
        """Takes note of a pass that has no scope; layers inside of it say so themselves."""


class NetworkState(ScopeState):
    """The state that apply() keeps in a network without known layers."""

    around = False

    def __init__(self, policy: str, text: str, reason: str = "", planned: bool = False):
        if any(line.split()[:1] == ["grad"] for line in text.splitlines()):
            raise ValueError("policies with `grad` lines need layers that compact knows")
        if text in (policy_text("recompute"), policy_text("tiled")):
            raise ValueError('blocks are rebuilt of layers that compact knows; "exact" rebuilds what it can in any network')
        super().__init__(policy if policy in presets() else text, False, Notes(), not planned)  # a planned step fits even if the part that it asks for is missed
        self.text = text
        self.reason = reason  # why no layer is served by itself
        self.own: dict[str, int] = {}  # reason: passes with gradients outside of a scope

    def __reduce__(self):
        return type(self), (self.policy, self.text, self.reason, not self.warns)

    def note_own(self, module: nn.Module, reason: str) -> None:
        self.own[reason] = self.own.get(reason, 0) + 1
        self.notes.say(f"a pass of {type(module).__name__} is not held by its policy: {reason}")
