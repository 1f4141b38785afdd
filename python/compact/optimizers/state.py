# SPDX-License-Identifier: Apache-2.0
"""The state that an optimizer keeps of a parameter: types and shapes of its tensors, new state, and checks of loaded state."""

from __future__ import annotations

from typing import Any

import torch

from ..base.library import ops
from ..base.shards import is_sharded, like_sharded, local_of
from ..base.type_names import name_of
from ..projected_weights.carriers import Carrier

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}  # by kind of update
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f8": torch.uint8}
PLACES = ("offload", "disk")  # after a type and `+`; else on the parameter's device
SCALES = "_scales"
_BLOCK = ops.moment_block()
_SHORT_VECTOR = 65536


class Kept:
    """State of one parameter, whose types Optimizer.load_state_dict must not change."""

    def __init__(self, state: dict[str, Any]):
        self.state = state


def _projection(p: Carrier) -> torch.Tensor:
    """The settings of its projection as the bytes of a text, which every checkpoint can hold."""
    return torch.tensor(list(p.projected.settings().encode()), dtype=torch.uint8, device="cpu")


def _text(projection: Any) -> str | None:
    known = isinstance(projection, torch.Tensor) and projection.dtype == torch.uint8 and projection.dim() == 1
    return bytes(projection.tolist()).decode(errors="replace") if known else None


def moment_type(p: torch.Tensor, group: dict[str, Any]) -> str:
    """The type that its moments are held in; short vectors have float32 in place of f8."""
    short = p.dim() < 2 and p.numel() < _SHORT_VECTOR
    held = group["moments"].partition("+")[0]
    return "f32" if held == "f8" and short else held


def layout(p: torch.Tensor, kind: str, group: dict[str, Any]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes of the tensors of its state; of a DTensor, whole."""
    held, shape = moment_type(p, group), tuple(p.shape)
    rows, row = (shape[0], shape[1:]) if len(shape) > 1 else (1, shape)
    blocks = -(-torch.Size(row).numel() // _BLOCK)
    held_as = {}
    for name in MOMENTS[kind]:
        held_as[name] = (TYPES[held], shape)
        if held == "f8":
            held_as[name + SCALES] = (torch.float32, (rows, blocks))
    if group["master_weights"] and p.dtype != torch.float32:
        held_as["master"] = (torch.float32, tuple(p.weight.shape) if isinstance(p, Carrier) else shape)
    return held_as


def placed(t: torch.Tensor, moments: str, folder: str) -> torch.Tensor:
    """A tensor of a state, or of a shard of it, where moments are: the same one, or a copy."""
    place = moments.partition("+")[2]
    if not place:
        return t
    return ops.state_zeros(t.shape, t.dtype, t.device, place, folder).copy_(t)


def new_state(p: torch.Tensor, kind: str, group: dict[str, Any], folder: str) -> dict[str, Any]:
    """The state before the first update; of a DTensor, this rank's shard. `folder`: of files of moments with `+disk`."""
    local = local_of(p)
    state: dict[str, Any] = {"step": torch.zeros((), dtype=torch.int64, device="cpu")}
    if isinstance(p, Carrier):
        state["projection"] = _projection(p)
    for name, (dtype, shape) in layout(p, kind, group).items():
        if not is_sharded(p):
            here = shape
        elif name.endswith(SCALES):
            here = (local.shape[0], *shape[1:])
        else:
            here = tuple(local.shape)
        t = ops.state_zeros(here, dtype, local.device, group["moments"].partition("+")[2], folder)
        if name == "master":
            t.copy_(p.weight if isinstance(p, Carrier) else local)
        state[name] = like_sharded(t, p, shape) if is_sharded(p) else t
    return state


def state_problem(state: dict[str, Any], p: torch.Tensor, kind: str, group: dict[str, Any], place: str) -> str | None:
    """Why a state is not this parameter's."""
    wanted = layout(p, kind, group)
    if isinstance(p, Carrier):
        if _text(state.get("projection")) != p.projected.settings():
            return (
                f"the state of {place} is of the projection {_text(state.get('projection'))!r}, here it is "
                f"{p.projected.settings()!r}: apply the policy that it was trained with, with the same seed"
            )
        state = {k: v for k, v in state.items() if k != "projection"}
    if state.keys() != {"step", *wanted}:
        return (
            f"the state of {place} must be {sorted({'step', *wanted})} (moments={group['moments']!r}, "
            f"master_weights={group['master_weights']}), is {sorted(map(str, state))}"
        )
    for name, (dtype, shape) in wanted.items():
        t = state[name]
        if not isinstance(t, torch.Tensor) or t.dtype != dtype or tuple(t.shape) != shape:
            found = f"{name_of(t.dtype)} {tuple(t.shape)}" if isinstance(t, torch.Tensor) else repr(t)
            return f"{name} of {place} must be {name_of(dtype)} {shape}, is {found}"
        if is_sharded(t) != is_sharded(p) or (is_sharded(p) and t.placements != p.placements):
            return f"{name} of {place} must be split over ranks as that is: torch.distributed.checkpoint.state_dict.set_optimizer_state_dict does it"
    return None
