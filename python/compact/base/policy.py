# SPDX-License-Identifier: Apache-2.0
"""Policies as the functions of the package take them: a preset's name, a file or a text."""
from __future__ import annotations

import os

from torch import nn

from .library import ops


def policy_text(policy: str | os.PathLike) -> str:
    """The lines of a policy: of a preset, by its name, of a file, by its path, or of a text."""
    if not isinstance(policy, (str, os.PathLike)):
        raise TypeError(f"a policy must be a preset's name, a path or a text, is a {type(policy).__name__}")
    policy = os.fspath(policy)
    if policy == "auto":
        raise ValueError("policy `auto` is chosen for a byte budget: compact.apply(model, budget=..., batch=...)")
    return ops.policy_text(policy)


def moments_of(model: nn.Module) -> str | None:
    """How the policy of a model has the moments of its optimizer held; None: it does not say."""
    texts = [module.__dict__["_compact_policy"][1] for module in model.modules() if "_compact_policy" in module.__dict__]
    return next(filter(None, map(ops.moments_of, filter(None, texts))), None)


def presets() -> list[str]:
    """Names of the policies that are built in and that apply() or saved_tensors() can do something with."""
    return sorted(ops.preset_names())
