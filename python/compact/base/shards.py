# SPDX-License-Identifier: Apache-2.0
"""Process groups, and tensors that are split over their ranks (DTensor), without importing DTensor's module."""
from __future__ import annotations

import sys

import torch
from torch import distributed, nn

PLAIN = (torch.Tensor, nn.Parameter)


def in_process_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def is_sharded(t: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor; before that module is imported none can exist."""
    if type(t) in PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def like_sharded(local: torch.Tensor, p: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A DTensor of a shape that is split over ranks as p is, of which this rank has `local`."""
    return sys.modules["torch.distributed.tensor"].DTensor.from_local(
        local,
        p.device_mesh,
        p.placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def local_of(t: torch.Tensor | None) -> torch.Tensor | None:
    if t is None or not is_sharded(t):
        return t
    t = t.to_local()
    return t.wait() if hasattr(t, "wait") else t  # of a collective that is under way


def shard_of(p: torch.Tensor) -> int:
    """The number of this rank's shard, the same for replicas of it."""
    number = 0
    if is_sharded(p):
        for dim, (placement, place) in enumerate(zip(p.placements, p.device_mesh.get_coordinate())):
            if not placement.is_replicate():
                number = number * p.device_mesh.size(dim) + place
    return number
