# SPDX-License-Identifier: Apache-2.0
"""Checks of settings, parameters and gradients of optimizers, which return the reason where they fail."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..base.shards import in_process_group, is_sharded, local_of
from ..base.torch_private import internal_overlap
from ..base.type_names import name_of
from ..projected_weights.carriers import Carrier
from .state import moment_type, MOMENTS, PLACES, TYPES

WEIGHTS = (torch.float32, torch.bfloat16)
RELEASE_ALONE = "release=True updates before gradients are summed over ranks: in a process group release=False"


def settings_problem(kind: str, group: dict[str, Any]) -> str | None:
    """Which setting of a group has a wrong type or is out of range."""
    held, plus, where = str(group["moments"]).partition("+")
    if held not in TYPES or (plus and where not in PLACES):
        return f"moments must be one of {', '.join(TYPES)}, alone or with +{' or +'.join(PLACES)}, is {group['moments']!r}"
    for key, wanted in (("master_weights", bool), ("seed", int)):
        if not isinstance(group[key], wanted) or isinstance(group[key], bool) != (wanted is bool):
            return f"{key} must be of type {wanted.__name__}, is {group[key]!r}"
    if not 0 <= group["seed"] < 2**63:
        return f"seed must be in [0, 2^63), is {group['seed']}"
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        return f"betas must be two numbers, are {betas!r}"
    for key, value in _settings(group).items():
        if _number(value) is None:
            return f"{key} must be a number, is {value!r}"
    for key in ("amsgrad", "maximize", "differentiable"):
        if group.get(key):
            return f"{key}=True is not supported, by itself or in a group"
    if group.get("decoupled_weight_decay", True) is False and group["weight_decay"]:
        return "decoupled_weight_decay=False is not supported: weight decay is no part of gradients here"
    if kind not in MOMENTS:
        return f"kind of a group must be one of {', '.join(MOMENTS)}, is {kind!r}"
    return None


def numbers_of(group: dict[str, Any]) -> dict[str, float]:
    """The numbers of an update, of settings that have no problem."""
    return {key: _number(value) for key, value in _settings(group).items()} | {"nesterov": float(bool(group.get("nesterov", True)))}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    rest = {key: group[key] for key in ("lr", "eps", "weight_decay")}
    return rest | {"beta1": beta1, "beta2": beta2, "momentum": group.get("momentum", 0.0)}


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def parameter_problem(p: torch.Tensor, kind: str, group: dict[str, Any], place: str) -> str | None:
    """Why a parameter cannot be updated."""
    if is_lazy(p):
        return f"{place} is of a lazy module, which has no shape before its first pass: make the optimizer after it"
    if p.dtype not in WEIGHTS:
        return f"{place} must be float32 or bfloat16, is {name_of(p.dtype)}"
    if isinstance(p, Carrier):
        if is_sharded(p.weight):
            return f"{place} is the carrier of a weight that is split over ranks: projected gradients need whole ones"
        return None
    if p.layout != torch.strided or internal_overlap(local_of(p.detach())) == 1:
        return f"{place} must be dense, with memory for every element, is {p.layout} with strides {tuple(p.stride())}"
    muon = kind == "muon"
    if muon and p.dim() != 2:
        return f"{place} must be a matrix for Muon, has the shape {tuple(p.shape)}"
    if not is_sharded(p):
        return None
    if muon:
        return f"{place} is split over ranks (a DTensor), and Muon needs whole matrices: train with DDP, or use compact.optim.AdamW"
    if any(placement.is_partial() for placement in p.placements):
        return f"{place} is a DTensor of partial sums, {p.placements}"
    cut = [x for x in p.placements if not x.is_replicate()]
    if moment_type(p, group) == "f8" and cut and (p.dim() < 2 or any(x.dim != 0 for x in cut)):
        return f'{place}: moments="f8" needs whole rows, which {p.placements} cuts of the shape {tuple(p.shape)}: give it a group with moments="bf16"'
    return None


def release_problem(p: torch.Tensor, place: str) -> str | None:
    """Why a parameter cannot be updated inside the backward pass."""
    if is_sharded(p):
        return f"{place} is split over ranks (a DTensor), and its gradient does not arrive by itself: release=False"
    return RELEASE_ALONE if in_process_group() else None


def gradient_problem(p: torch.Tensor, place: str) -> str | None:
    """Why a parameter's gradient cannot be used."""
    grad = p.grad
    if grad.layout != torch.strided:
        return f"{place} has a sparse gradient ({grad.layout}), which is not supported"
    if grad.dtype not in WEIGHTS:
        return f"the gradient of {place} must be float32 or bfloat16, is {name_of(grad.dtype)}"
    if grad.shape != p.shape or grad.device != p.device or is_sharded(grad) != is_sharded(p):
        return f"the gradient of {place} must be as that, {tuple(p.shape)} on {p.device}, is {tuple(grad.shape)} on {grad.device}"
    return None


def draw_problem(p: Carrier, state: dict[str, Any] | None, place: str) -> str | None:
    """Why a carrier's gradient was made with another projection than its next update has."""
    period = p.projected.period()
    draw = int(state["step"]) // period if state and period > 0 else 0
    if p.projected.draw() != draw:
        return (
            f"{place} has projection {p.projected.draw()}, and its next update is of number {draw}: load the optimizer's state "
            "before the first pass of a run that goes on, and give products of one input to one optimizer; freeze and unfreeze "
            "them together"
        )
    if p.is_stale():
        return (
            f"{place} has a gradient of a projection before the one in force: zero_grad() belongs between step() and the next "
            "backward pass, and the optimizer's state is loaded before the first pass"
        )
    return None
