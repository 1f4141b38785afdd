# SPDX-License-Identifier: Apache-2.0
"""Names of types and classes, in messages and in tables."""
from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_OWN_CODE = ("transformers.", "torch.")
_WRAPPERS = ("transformers.", "torch._dynamo.", "torch.compiler.")  # what they put around a function changes nothing that it computes
_CACHED = type(functools.cache(len))
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def base_of_path(cls: type, path: str) -> type | None:
    """The class itself, or the base of it, that has this path; fully_shard, for one, derives classes."""
    return next((base for base in cls.__mro__ if path_of(base) == path), None)


def origin_of(function: Callable) -> str:
    """The module in which a function's code stands, or that of the class of an object, whatever functools.wraps has copied to it."""
    inside: Any = getattr(function, "__func__", function)
    if not isinstance(inside, _FUNCTIONS):
        return type(inside).__module__
    return getattr(inside, "__globals__", {}).get("__name__") or inside.__module__ or ""


def code_of(function: Callable) -> Callable:
    """What is inside the wrappers of transformers and torch.compile around a function. Any other wrapper may change
    what is computed, as torch.no_grad and torch.autocast do, so that it is what runs."""
    while (inner := getattr(function, "__wrapped__", None)) is not None and (isinstance(function, _CACHED) or origin_of(function).startswith(_WRAPPERS)):
        function = inner
    return function


def is_own_code(function: Callable) -> bool:
    """Whether torch or transformers defines a function, and no decorator made it of another one."""
    inside = code_of(function)
    if isinstance(inside, nn.Module) and origin_of(inside).startswith("kernels.") and "forward" not in inside.__dict__:
        inside = inspect.getclosurevars(type(inside).forward).nonlocals.get("func")  # the package `kernels` makes modules of functions
    return isinstance(inside, _FUNCTIONS) and not getattr(inside, "__closure__", None) and f"{origin_of(inside)}.".startswith(_OWN_CODE)


def functions_of(functions: Iterable[Callable]) -> list[tuple[dict, str, Callable | None]]:
    """What each calls by a name of its own file, and what these call so: the file's names, the name, and the function,
    or None where it is none of torch's or transformers'."""
    found: dict[tuple[int, str], tuple[dict, str, Callable | None]] = {}

    def search(function: Callable) -> None:
        names, code = getattr(function, "__globals__", {}), getattr(function, "__code__", None)
        for name in {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"} if code else ():
            other = names.get(name)
            if callable(other) and not isinstance(other, type) and (id(names), name) not in found:
                origin, file = origin_of(code_of(other)), names.get("__name__")
                # Another model's function may have the same name.
                own = is_own_code(other) and (origin == file or not origin.startswith("transformers.models."))
                found[id(names), name] = names, name, other if own else None
                if origin_of(other) == file:
                    search(code_of(other))

    for function in functions:
        search(function)
    return list(found.values())


def methods_of(cls: type[nn.Module]) -> list[tuple[str, Callable | None]]:
    """The methods of a class that its forward calls: the name, and the function, or None where it is of another package
    than the forward."""
    forward = code_of(cls.forward)
    names = forward.__code__.co_names if isinstance(forward, types.FunctionType) else ()
    methods = {name: getattr(cls, name, None) for name in names if not hasattr(nn.Module, name)}
    package = origin_of(forward).partition(".")[0]
    return [(name, method if origin_of(code_of(method)).partition(".")[0] == package else None) for name, method in methods.items() if callable(method)]


def has_plain_weights(cls: type[nn.Module]) -> bool:
    """Whether what a class reads as `weight` and `bias` are its parameters, and no values that are made of them."""
    inherited = all(getattr(cls, name) is getattr(nn.Module, name) for name in ("__getattr__", "__getattribute__"))
    return inherited and not hasattr(cls, "weight") and not hasattr(cls, "bias")


def is_forward_of(cls: type, path: str) -> bool:
    """Whether the forward of a class is the one that module.Class defines, and not a patched one."""
    function = code_of(cls.forward)
    return f"{origin_of(function)}.{function.__qualname__}" == f"{path}.forward"
