# SPDX-License-Identifier: Apache-2.0
"""Reads attention masks: the length of each padded sample, or that a mask is of another kind."""
from __future__ import annotations

import threading
import weakref

import torch

from ..base.torch_private import version_of

OTHER = "the attention mask is neither causal nor padding at the end (but padding at the beginning, packed sequences or the like)"


class _Last(threading.local):
    """The mask that this thread read last; all layers of a pass get the same mask."""

    mask: weakref.ref | None = None
    key: tuple = ()
    result: tuple = ()


_last = _Last()


def read_mask(
    mask: torch.Tensor, length: int, causal: bool, window: int | None, number: int = 0
) -> tuple[torch.Tensor | None, str | None]:
    """Reads a mask [batch, 1, queries, keys], booleans of what is attended to or numbers that are added.

    Returns (lengths, None), lengths int64 [batch] of sequences that are padded at their end and None
    where none is; or (None, why not). `window`: a token attends to so many, itself among them.
    `number`: of the pass; a mask is read once in a pass.
    """
    key = (version_of(mask), length, causal, window, number)
    if _last.mask is not None and _last.mask() is mask and _last.key == key:
        return _last.result
    with torch.no_grad():
        result = _read(mask, length, causal, window)
    _last.mask, _last.key, _last.result = weakref.ref(mask), key, result
    return result


def _read(mask, length, causal, window):
    if mask.dim() != 4 or mask.size(1) != 1 or mask.size(3) != length or mask.size(2) not in (1, length):
        return None, OTHER
    if causal and mask.size(2) != length:
        return None, OTHER
    if mask.dtype == torch.bool:
        allowed = mask
    elif mask.is_floating_point():
        allowed = mask == 0
        if not bool((allowed | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            return None, OTHER
    else:
        return None, OTHER
    places = torch.arange(length, device=mask.device)
    distance = places[:, None] - places[None, :]
    expected = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    if causal:
        expected = distance >= 0
    if window is not None and window < length:
        expected = expected & (distance < window)
    # Each token that is there attends to itself; the mask of an encoder may have one row for all.
    lengths = (allowed[:, 0].diagonal(dim1=-2, dim2=-1) if causal else allowed[:, 0, -1]).sum(-1)
    if mask.is_floating_point() and window is not None and bool((lengths + window <= length).any()):
        return None, OTHER  # padding that attends to nothing attends to everything where numbers are added
    seen = (places < lengths[:, None])[:, None, None, :]
    wanted = (expected[None, None] & seen).expand(mask.size(0), 1, length, length)
    if not bool((allowed == wanted).all()) or not bool((lengths > 0).all()):
        return None, OTHER
    return (None if bool((lengths == length).all()) else lengths), None
