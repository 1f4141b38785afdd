# SPDX-License-Identifier: Apache-2.0
"""Values of tensors on the meta device, as far as they follow from values that are known: models
look at positions and masks to decide what they run."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..base.torch_private import pytree

VALUE = "_compact_value"  # the attribute of a meta tensor whose values are known
_UNKNOWN = "_compact_unknown"  # the attribute of a value's storage to which an unknown value was written
MOST = 1 << 28  # elements
NO_PLAN_NEEDED = '. compact.saved_tensors("exact", model=net, budget="40%") around the forward pass needs no plan'
NO_PLAN = ". What reads values cannot be planned" + NO_PLAN_NEEDED
# The functions that make a number or a list of a tensor.
_READS = {
    torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__,
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.equal, torch.equal,
}  # fmt: skip
_WRITES = ("__setitem__", "__iadd__", "__imul__", "__isub__", "__iand__", "__ior__", "__set__")
_VIEWS = ("T", "mT", "H", "mH", "data", "real", "imag")  # attributes
_WITHOUT_VALUES = ("rand", "empty", "normal", "bernoulli", "multinomial", "dropout")


def with_value(value: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device whose values are known."""
    meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    setattr(meta, VALUE, value)
    return meta


class KnownValues(TorchFunctionMode):
    """While it is entered, what is computed of tensors with known values has known values, too, and
    questions about them are answered. Throws ValueError where an unknown value is asked for."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS:
            known, missing = _known((args, kwargs))
            if missing:
                raise ValueError(f"a plan has no values: the model asks {func.__name__} of a tensor that depends on its weights{NO_PLAN}")
            return func(*known[0], **known[1])
        name = getattr(func, "__name__", "")
        try:
            out = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):  # sizes that depend on values
            if name in ("__getitem__", "__setitem__") and (places := _places_of(args[1])) is not None:
                args = (args[0], places, *args[2:])
                out = func(*args)
            else:
                known, missing = _known((args, kwargs))
                if missing:
                    raise
                return pytree.tree_map(lambda x: with_value(x) if isinstance(x, torch.Tensor) else x, func(*known[0], **known[1]))
        if args and (name in _WRITES or (name.endswith("_") and not name.endswith("__"))):
            self._write(func, args, kwargs)
            return out
        if any(_wants_value(t) for t in pytree.tree_leaves(out)) and not _without_values(func):
            self._attach(func, out, args, kwargs)
        return out

    @staticmethod
    def _write(func: Callable, args: tuple, kwargs: dict) -> None:
        """A tensor that is written to, in place, keeps its values as far as the written ones are known; else no tensor that
        shares its memory does."""
        value = getattr(args[0], VALUE, None) if isinstance(args[0], torch.Tensor) else None
        if value is None:
            return
        known, missing = _known((args, kwargs))
        if missing or _without_values(func):
            setattr(value.untyped_storage(), _UNKNOWN, True)
        else:
            func(*known[0], **known[1])

    @staticmethod
    def _attach(func: Callable, out: Any, args: tuple, kwargs: dict) -> None:
        known, missing = _known((args, kwargs))
        if missing:
            return
        values = func(*known[0], **known[1])
        for meta, value in zip(pytree.tree_leaves(out), pytree.tree_leaves(values)):
            if _wants_value(meta):
                setattr(meta, VALUE, value)


class NumbersOfUpdates(TorchFunctionMode):
    """While it is entered, numbers that are read of tensors on the meta device are 1: an update multiplies
    by them, as by a norm of its parameter. Throws ValueError where it would decide by a value."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _READS and args[0].device.type == "meta":
            if func in (torch.Tensor.item, torch.Tensor.__float__):
                return 1.0
            raise ValueError(f"compact.plan: a plan has no values: the optimizer asks {func.__name__} of a tensor")
        return func(*args, **(kwargs or {}))


def _places_of(index: Any) -> Any:
    """The index with masks of known values as the places where they are true; None: there are none."""
    found, any_mask = [], False
    for part in index if isinstance(index, tuple) else (index,):
        mask = getattr(part, VALUE, None) if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) else None
        any_mask |= mask is not None
        found += [part] if mask is None else map(with_value, mask.nonzero(as_tuple=True))
    return tuple(found) if any_mask else None


def _without_values(func: Callable) -> bool:
    name = getattr(func, "__name__", "")
    return (name == "__get__" and func.__self__.__name__ not in _VIEWS) or name.lstrip("_").startswith(_WITHOUT_VALUES)


def _wants_value(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "meta" and not t.requires_grad and t.numel() <= MOST


def _known(given: Any) -> tuple[Any, bool]:
    """The same with the values of meta tensors in their place; whether one is unknown."""
    missing = False

    def replace(x: Any) -> Any:
        nonlocal missing
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            value = getattr(x, VALUE, None)
            missing |= value is None or hasattr(value.untyped_storage(), _UNKNOWN)
            return value
        if (isinstance(x, torch.device) and x.type == "meta") or (isinstance(x, str) and x == "meta"):
            return torch.device("cpu")
        return x

    return pytree.tree_map(replace, given), missing
