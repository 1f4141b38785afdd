# SPDX-License-Identifier: Apache-2.0
"""Names of types and classes, in messages and in tables."""
from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

OWN_CODE = ("transformers.", "torch.")  # their decorators change nothing that a forward computes


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def base_of_path(cls: type, path: str) -> type | None:
    """The class itself, or the base of it, that has this path; fully_shard, for one, derives classes."""
    return next((base for base in cls.__mro__ if path_of(base) == path), None)


def origin_of(function: Callable) -> str:
    """The module in which a function's code stands, whatever functools.wraps has copied to it."""
    inside: Any = getattr(function, "__func__", function)
    return getattr(inside, "__globals__", {}).get("__name__") or getattr(function, "__module__", None) or ""


def code_of(function: Callable) -> Callable:
    """What is inside the wrappers that transformers and torch put around a function. A wrapper of anybody else may
    compute anything, so that it is what runs."""
    while (inner := getattr(function, "__wrapped__", None)) is not None and origin_of(function).startswith(OWN_CODE):
        function = inner
    return function


def functions_of(functions: Iterable[Callable]) -> list[tuple[dict, str, Callable]]:
    """The functions of its own file that each names, and that these name: the file's names, the name, the function."""
    found: dict[tuple[int, str], tuple[dict, str, Callable]] = {}

    def search(function: Callable) -> None:
        names, code = getattr(function, "__globals__", {}), getattr(function, "__code__", None)
        for name in code.co_names if code else ():
            other = names.get(name)
            if isinstance(other, types.FunctionType) and (id(names), name) not in found:
                found[id(names), name] = names, name, other
                if origin_of(other) == names.get("__name__"):
                    search(code_of(other))

    for function in functions:
        search(function)
    return list(found.values())


def is_forward_of(cls: type, path: str) -> bool:
    """Whether the forward of a class is the one that module.Class defines, and not a patched one."""
    function = code_of(cls.forward)
    return f"{origin_of(function)}.{function.__qualname__}" == f"{path}.forward"
