# SPDX-License-Identifier: Apache-2.0
"""What types and classes are called, in messages and in tables."""
from __future__ import annotations

import torch


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def base_of_path(cls: type, path: str) -> type | None:
    """The class of a path that a class is, or derives as those do that fully_shard makes."""
    return next((base for base in cls.__mro__ if path_of(base) == path), None)
