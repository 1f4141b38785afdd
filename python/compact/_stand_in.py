# SPDX-License-Identifier: Apache-2.0
"""What stands in a module for a forward pass of its class, and what is known of the module."""
from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

log = logging.getLogger("compact")
STATE = "_compact"  # the attribute of a module that has a stand-in
REPLICATE = "_replicate_for_data_parallel"
TYPES = (torch.float32, torch.bfloat16)  # that the library computes in


def state_of(module: nn.Module) -> Any:
    """What compact knows of a module; None where that is nothing."""
    return module.__dict__.get(STATE)


class Notes:
    """What is said once of a model."""

    def __init__(self):
        self._said: set[str] = set()

    def say(self, text: str, key: str = "") -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            log.warning(f"compact: {text}")


def is_forward_of(cls: type, path: str) -> bool:
    """Whether the forward of a class is the one that module.Class defines, and not a patched one."""
    function = inspect.unwrap(cls.forward)
    return f"{function.__module__}.{function.__qualname__}" == f"{path}.forward"


def under_transform() -> bool:
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


class Forward:
    """A forward pass that stands in a module for that of its class. Copies are of the copied module."""

    def __init__(self, function: Callable, module: nn.Module):
        self.function, self._module = function, weakref.ref(module)  # a model is freed without a collection

    @property
    def module(self) -> nn.Module:
        return self._module()

    def __reduce__(self):
        return type(self), (self.function, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if STATE not in module.__dict__:  # removed, and still held by who wrapped it
            return type(module).forward(module, *args, **kwargs)
        if is_dynamo_compiling():  # its nodes are none of Python's, and stay out of a compiled graph
            return _outside_of_graphs(self.function, module, *args, **kwargs)
        return self.function(module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        # Trainer takes from it which columns of a data set a model reads.
        return inspect.signature(type(self.module).forward.__get__(self.module))


class Replicate(Forward):
    """Makes replicas for nn.DataParallel, which run the own forward of their class."""

    def __init__(self, function: Callable | None, module: nn.Module):
        super().__init__(function, module)

    def __call__(self) -> nn.Module:
        module = self._module()
        if getattr(state_of(module), "projected", None) and torch.is_grad_enabled():
            raise RuntimeError("compact: nn.DataParallel's replicas would lose projected gradients: use DistributedDataParallel, or one GPU")
        replica = type(module)._replicate_for_data_parallel(module)
        for name in (STATE, "forward", REPLICATE):
            replica.__dict__.pop(name, None)
        return replica


@torch.compiler.disable
def _outside_of_graphs(function: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return function(module, *args, **kwargs)
