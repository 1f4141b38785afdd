# SPDX-License-Identifier: Apache-2.0
"""Names of types and classes, in messages and in tables."""
from __future__ import annotations

import inspect

import torch


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def base_of_path(cls: type, path: str) -> type | None:
    """The class itself, or the base of it, that has this path; fully_shard, for one, derives classes."""
    return next((base for base in cls.__mro__ if path_of(base) == path), None)


def is_forward_of(cls: type, path: str) -> bool:
    """Whether the forward of a class is the one that module.Class defines, and not a patched one."""
    function = inspect.unwrap(cls.forward)
    return f"{function.__module__}.{function.__qualname__}" == f"{path}.forward"
