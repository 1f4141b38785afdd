# SPDX-License-Identifier: Apache-2.0
"""Adapters of peft around the products of a layer: LoRA (Hu et al. 2021), which blocks can have."""
from __future__ import annotations

from typing import Any

from torch import nn

LORA = "peft.tuners.lora.layer.Linear"
Row = tuple[str, int, int, float, float]  # product, which of its matrices, rank, scale, dropout


def plain(module: Any) -> Any:
    """The product without the adapters around it."""
    return module._modules.get("base_layer", module) if isinstance(module, nn.Module) else module


def is_lora(module: nn.Module) -> bool:
    # The class itself, or one that fully_shard made of it.
    classes = [c for c in type(module).__mro__ if f"{c.__module__}.{c.__qualname__}" == LORA]
    return bool(classes) and type(module).forward is classes[0].forward


def why_not(module: nn.Module) -> str | None:
    """Why a block cannot have these adapters, as they are now."""
    inside, modules = module.__dict__, module._modules
    names = _active(module)
    if inside["merged_adapters"] and inside["_disable_adapters"]:
        return "adapters that are merged are disabled"
    if not inside["cast_input_dtype_enabled"]:
        return "adapters do not cast what they read"
    for name in names:
        if name in inside["lora_variant"] or name in modules["lora_magnitude_vector"]._modules:
            return "an adapter is a variant of LoRA (DoRA or another)"
        if modules["lora_B"]._modules[name]._parameters.get("bias") is not None:
            return "an adapter has a bias"
        if type(modules["lora_dropout"]._modules[name]) not in (nn.Dropout, nn.Identity):
            return "an adapter has another dropout than torch's"
        if not all(type(modules[part]._modules[name]) is nn.Linear for part in ("lora_A", "lora_B")):
            return "an adapter is not made of torch's Linear"
    return None


def of(module: nn.Module, product: str, part: int) -> tuple[list[Row], list[tuple[nn.Module, nn.Module]]]:
    """What the active adapters of a product are, and their A and B."""
    rows, matrices = [], []
    modules = module._modules
    for name in _active(module):
        a, b = modules["lora_A"]._modules[name], modules["lora_B"]._modules[name]
        dropout = modules["lora_dropout"]._modules[name].__dict__.get("p", 0)
        rows.append((product, part, a.out_features, float(module.__dict__["scaling"][name]), float(dropout)))
        matrices.append((a, b))
    return rows, matrices


def _active(module: nn.Module) -> list[str]:
    inside = module.__dict__
    if inside["_disable_adapters"] or inside["merged_adapters"]:
        return []
    names = inside["_active_adapter"]
    known = module._modules["lora_A"]._modules
    return [name for name in ([names] if isinstance(names, str) else names) if name in known]
