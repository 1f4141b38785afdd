# SPDX-License-Identifier: Apache-2.0
"""Names of types and classes, in messages and in tables."""
from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .torch_private import parameters_of

_OWN_CODE = ("transformers.", "torch.")
_WRAPPERS = ("transformers.", "torch._dynamo.", "torch.compiler.")  # their wrappers change nothing that a function computes
_CACHED = type(functools.cache(len))
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
Called = tuple[dict, str, Callable | None, Callable | None]


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
    """The function inside the wrappers of transformers and torch.compile around one. Any other wrapper may change
    what is computed, as torch.no_grad and torch.autocast do, so that it is what runs."""
    while (inner := getattr(function, "__wrapped__", None)) is not None and (isinstance(function, _CACHED) or origin_of(function).startswith(_WRAPPERS)):
        function = inner
    return function


def is_own_code(function: Callable) -> bool:
    """Whether torch or transformers defines a function, and no decorator made it of another one."""
    inside = function_in(function)
    return isinstance(inside, _FUNCTIONS) and not getattr(inside, "__closure__", None) and f"{origin_of(inside)}.".startswith(_OWN_CODE)


def function_in(function: Callable) -> Callable | None:
    """The same as code_of(), and of a module that the package `kernels` has made of a function that function; None: the
    module is of another kind, or another forward was put into it."""
    module = code_of(function)
    if not isinstance(module, nn.Module):
        return module
    forward = type(module).forward
    if "forward" in module.__dict__ or not origin_of(module).startswith("kernels."):
        return None
    names = forward.__code__.co_freevars
    return forward.__closure__[names.index("func")].cell_contents if "func" in names else None


def functions_of(functions: Iterable[Callable]) -> list[Called]:
    """The functions that each of these calls by a name of its own file, and those that they call so: the file's names, the
    name, the function, or None where it is none of torch's or transformers', and function_in() of it."""
    found: dict[tuple[int, str], Called] = {}

    def search(function: Callable) -> None:
        names, code = getattr(function, "__globals__", {}), getattr(function, "__code__", None)
        for name in {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"} if code else ():
            other = names.get(name)
            if callable(other) and not isinstance(other, type) and (id(names), name) not in found:
                inside, file = function_in(other), names.get("__name__")
                origin = origin_of(inside) if inside else None
                # Another model's function may have the same name.
                own = is_own_code(other) and (origin == file or not origin.startswith("transformers.models."))
                found[id(names), name] = names, name, other if own else None, inside
                if origin == file:
                    search(inside)

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


def has_plain_weights(module: nn.Module) -> bool:
    """Whether what a module reads as `weight` and `bias` are its parameters, and no values that are made of them. A
    class may say `bias = None` where there is no such parameter, which would not be read."""
    cls = type(module)
    inherited = all(getattr(cls, name) is getattr(nn.Module, name) for name in ("__getattr__", "__getattribute__"))
    no_bias = getattr(cls, "bias", None) is None and (not hasattr(cls, "bias") or parameters_of(module).get("bias") is None)
    return inherited and no_bias and not hasattr(cls, "weight")


def is_forward_of(cls: type, path: str) -> bool:
    """Whether the forward of a class is the one that module.Class defines, and not a patched one."""
    function = code_of(cls.forward)
    return f"{origin_of(function)}.{function.__qualname__}" == f"{path}.forward"
