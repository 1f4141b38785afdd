# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a whole network, of which no layer is known, in a scope of saved_tensors()."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from ..base.log import Notes
from ..base.policy import policy_text, presets
from ..base.torch_private import top_saved_tensors_hooks, under_transform
from .saved_tensors import saved_tensors, SavedTensorsReport


class NetworkState:
    """What apply() keeps in such a network. A copy of the network has one of its own."""

    def __init__(self, policy: str, text: str, reason: str = "", planned: bool = False):
        if any(line.split()[:1] == ["grad"] for line in text.splitlines()):
            raise ValueError("policies with `grad` lines need layers that compact knows")
        if text == policy_text("recompute"):
            raise ValueError('blocks are rebuilt of layers that compact knows; "exact" rebuilds what it can in any network')
        saved_tensors(policy)  # throws what of it cannot be done
        self.policy, self.text = policy if policy in presets() else text, text
        self.reason = reason  # why no layer is served by itself
        self.planned = planned  # its policy was chosen for a step's budget
        self.calls = 0  # passes with gradients
        self.own: dict[str, int] = {}  # reason: passes with gradients outside of a scope
        self._notes = Notes()
        self._scopes: dict[int, saved_tensors] = {}  # by thread
        self._last: saved_tensors | None = None

    def __reduce__(self):
        return type(self), (self.policy, self.text, self.reason, self.planned)

    @property
    def saved(self) -> SavedTensorsReport | None:
        """What the last pass saved; None: there was none."""
        return self._last.report() if self._last else None

    def run(self, module: nn.Module, args: tuple, kwargs: dict) -> Any:
        own = type(module).forward
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return own(module, *args, **kwargs)
        transform = under_transform()
        if transform or top_saved_tensors_hooks(True) is not None:
            reason = "a transform of torch.func is in force" if transform else "other hooks of saved tensors are in force"
            self.own[reason] = self.own.get(reason, 0) + 1
            self._notes.say(f"a pass of {type(module).__name__} is not held by its policy: {reason}")
            return own(module, *args, **kwargs)
        thread = threading.get_ident()
        if thread not in self._scopes:
            self._scopes[thread] = saved_tensors(self.policy)
            self._scopes[thread].warns &= not self.planned  # the step fits, whatever part of it is reached
        scope = self._scopes[thread]
        scope.model = module
        try:
            with scope:
                result = own(module, *args, **kwargs)
        finally:
            scope.model = None  # a model is freed without a collection
        self._last = scope
        self.calls += 1
        return result
