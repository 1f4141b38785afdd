# SPDX-License-Identifier: Apache-2.0
"""LoRA (Hu et al. 2021): adapters of peft around the products of a layer, which a block can compute."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..base.library import TYPES
from ..base.torch_private import parameters_of, submodules_of
from ..base.type_names import base_of_path, code_of, is_forward_of, name_of, origin_of

LORA = ("peft.tuners.lora.layer.Linear", "peft.tuners.lora.bnb.Linear4bit", "peft.tuners.lora.bnb.Linear8bitLt")
Row = tuple[str, int, int, float, float]  # product, which of its matrices, rank, scale, dropout


def plain(module: Any) -> Any:
    """The product itself, without adapters around it."""
    return submodules_of(module).get("base_layer", module) if isinstance(module, nn.Module) else module


def has_bias(product: nn.Module) -> bool:
    parameters = parameters_of(product)  # FullyShardedDataParallel removes the parameters that it splits, and sets attributes instead
    return (parameters["bias"] if "bias" in parameters else product.__dict__.get("bias")) is not None


def is_lora(module: nn.Module) -> bool:
    if not any(base_of_path(type(module), path) and is_forward_of(type(module), path) for path in LORA):  # derived, or patched
        return False
    helper = code_of(type(module)._cast_input_dtype)
    return origin_of(helper).startswith("peft.") and "_cast_input_dtype" not in module.__dict__


def adapter_problem(module: nn.Module) -> str | None:
    """Why a block cannot have the active adapters of a product."""
    inside, modules = module.__dict__, submodules_of(module)
    names = _active(module)
    if inside["merged_adapters"] and inside["_disable_adapters"]:
        return "adapters that are merged are disabled"
    if not inside["cast_input_dtype_enabled"]:
        return "adapters do not cast what they read"
    for name in names:
        if name in inside["lora_variant"] or name in submodules_of(modules["lora_magnitude_vector"]):
            return "an adapter is a variant of LoRA (DoRA or another)"
        matrices = [submodules_of(modules[part])[name] for part in ("lora_A", "lora_B")]
        if not all(type(matrix) is nn.Linear for matrix in matrices):
            return "an adapter is not made of torch's Linear"
        if any(has_bias(matrix) for matrix in matrices):
            return "an adapter has a bias"
        dropout, scale = submodules_of(modules["lora_dropout"])[name], inside["scaling"][name]
        if type(dropout) not in (nn.Dropout, nn.Identity):
            return "an adapter has another dropout than torch's"
        part = dropout.__dict__.get("p", 0)
        if not part < 1:
            return f"an adapter drops a part of {part}, which must be below 1"
        if part > 0 and matrices[0].weight.dtype not in TYPES:
            return f"an adapter with dropout is {name_of(matrices[0].weight.dtype)}; float32 and bfloat16 are served"
        if isinstance(scale, torch.Tensor) and scale.requires_grad:
            return "an adapter's scale is trained"
        if not math.isfinite(scale):
            return f"an adapter's scale is {float(scale)}"
    return None


def active_adapters(module: nn.Module, product: str, part: int) -> list[tuple[Row, nn.Module, nn.Module]]:
    """The active adapters of a product, each with its A and B; two results are equal where no adapter has changed between them."""
    found = []
    modules = submodules_of(module)
    for name in _active(module):
        a, b = submodules_of(modules["lora_A"])[name], submodules_of(modules["lora_B"])[name]
        dropout = submodules_of(modules["lora_dropout"])[name].__dict__.get("p", 0)
        row = (product, part, a.out_features, float(module.__dict__["scaling"][name]), float(dropout))
        found.append((row, a, b))
    return found


def _active(module: nn.Module) -> list[str]:
    inside = module.__dict__
    if inside["_disable_adapters"] or inside["merged_adapters"]:
        return []
    names = inside["_active_adapter"]
    known = submodules_of(submodules_of(module)["lora_A"])
    return [name for name in ([names] if isinstance(names, str) else names) if name in known]
