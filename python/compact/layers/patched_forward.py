# SPDX-License-Identifier: Apache-2.0
"""Objects that replace the `forward` of one module, and the state that compact keeps in the module."""
from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from ..base.torch_private import calling_module, REPLICATE

STATE = "_compact"  # the attribute of a module whose forward is replaced
SCOPE = "_compact_scope"  # of a module that has a scope around its layers, too
LOSS = "_compact_loss"  # of a model that may make its loss in chunks
KEPT = STATE, SCOPE, LOSS


def state_of(module: nn.Module) -> Any:
    """The state that compact keeps in a module; None: it keeps none."""
    return module.__dict__.get(STATE)


def check_module(function: str, model: Any) -> None:
    """Throws TypeError if the first argument of a function is not a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"compact.{function}: the first argument must be a torch.nn.Module, is a {type(model).__name__}")


def _none() -> None:
    return None


def is_recorded() -> bool:
    """Whether torch.export or torch.jit.trace records the operations that run."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


class Forward:
    """Replaces the forward of one module; a copy of it in a copied module is for that one, and a shallow copy of a
    module has this object itself, which then is for the module that is called. What is exported or traced by
    torch.export and torch.jit.trace is the forward of the class: plain operations, which run where compact is not."""

    def __init__(self, function: Callable | None, module: nn.Module | None):
        # A model is freed without a collection. None: a shallow copy outlived it.
        self.function, self._module = function, weakref.ref(module) if module is not None else _none

    @property
    def module(self) -> nn.Module | None:
        return self._module()

    def __reduce__(self):
        return type(self), (self.function, self.module)

    def _called(self) -> nn.Module:
        """The module that is called, this object's own or a shallow copy of it."""
        module = self._module()
        if is_dynamo_compiling():
            return module
        caller = calling_module(__file__)
        if caller is not None and caller.__dict__.get("forward") is self:
            return caller
        if module is None:
            raise RuntimeError("compact: the module of this forward is gone")
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._called()
        if args and args[0] is module:  # accelerate binds this object to its module
            args = args[1:]
        if STATE not in module.__dict__ or is_recorded():  # none after remove(), where a wrapper still holds this object
            return type(module).forward(module, *args, **kwargs)
        if is_dynamo_compiling():  # a compiled graph cannot contain the library's nodes
            return _outside_of_graphs(self.function, module, *args, **kwargs)
        return self.function(module, *args, **kwargs)

    @property
    def __code__(self) -> types.CodeType:  # torch.export says by it where a model stands
        return type(self.module).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        # Trainer reads from the signature which columns of a data set a model takes.
        return inspect.signature(type(self.module).forward.__get__(self.module))


class Around(Forward):
    """Replaces the forward of a module in a way that a compiled graph may do without."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        if is_dynamo_compiling() and state_of(module) is True and LOSS not in module.__dict__:
            return type(module).forward(module, *args, **kwargs)
        return super().__call__(*args, **kwargs)


class Replicate(Forward):
    """Makes the replicas of a module for nn.DataParallel, which run the forward of its class."""

    def __call__(self) -> nn.Module:
        module = self._module()
        if getattr(state_of(module), "projected", None) and torch.is_grad_enabled():
            raise RuntimeError("compact: nn.DataParallel's replicas would lose projected gradients: use DistributedDataParallel, or one GPU")
        replica = getattr(type(module), REPLICATE)(module)
        for name in (*KEPT, "forward", REPLICATE):
            replica.__dict__.pop(name, None)
        return replica


@torch.compiler.disable
def _outside_of_graphs(function: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return function(module, *args, **kwargs)
