# SPDX-License-Identifier: Apache-2.0
"""Reads attention masks: which tokens attend to which, as blocks take it, or that a mask is of another kind."""
from __future__ import annotations

import array
import threading
import weakref
from typing import NamedTuple

import torch

from ..base.torch_private import version_of

OTHER = "the attention mask is neither causal nor padding at one end of the rows nor packed sequences"


class Mask(NamedTuple):
    """The tokens that attend to each other, as a mask says."""

    lengths: torch.Tensor | None = None  # int64 [batch], where sequences are padded at their end
    # int64 [n, 3] on the CPU: rows (row of the batch, begin, end) of tokens that attend causally to each other alone, in
    # order; tokens in none attend to nothing. Neither: every row is one sequence.
    ranges: torch.Tensor | None = None
    reason: str | None = None  # why a block does not compute it


class _Last(threading.local):
    """The mask that this thread read last; all layers of a pass get the same mask."""

    mask: weakref.ref | None = None
    key: tuple = ()
    result: Mask | None = None


_last = _Last()


def read_mask(mask: torch.Tensor, length: int, causal: bool, window: int | None, number: int = 0, batch: int | None = None) -> Mask:
    """Reads a mask [batch or 1, 1, queries, keys], booleans of what is attended to or numbers that are added.

    `window`: a token attends to so many, itself among them. `number`: of the pass; a mask is read once in a pass.
    `batch`: how many rows one mask is for.
    """
    key = (version_of(mask), length, causal, window, number, batch)
    if _last.mask is not None and _last.mask() is mask and _last.key == key:
        return _last.result
    with torch.no_grad():
        result = _read(mask, length, causal, window, batch or mask.size(0) if mask.dim() == 4 else 0)
    _last.mask, _last.key, _last.result = weakref.ref(mask), key, result
    return result


def _read(mask: torch.Tensor, length: int, causal: bool, window: int | None, batch: int) -> Mask:
    other = Mask(reason=OTHER)
    if mask.dim() != 4 or mask.size(1) != 1 or mask.size(3) != length or mask.size(2) not in (1, length):
        return other
    if mask.size(0) not in (1, batch) or (causal and mask.size(2) != length):
        return other
    if mask.dtype == torch.bool:
        allowed = mask
    elif mask.is_floating_point():
        allowed = mask == 0
        if not bool((allowed | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            return other
    else:
        return other
    places = torch.arange(length, device=mask.device)
    if causal:
        found = _ranges(allowed[:, 0], places, empty=mask.dtype == torch.bool)
        if found is not None and (window is None or all(end - begin <= window for row in found for begin, end in row)):
            return _of_ranges(found * (batch // mask.size(0)), length)
    return _of_lengths(mask, allowed, places, causal, window, batch)


def _ranges(allowed: torch.Tensor, places: torch.Tensor, empty: bool) -> list[list[tuple[int, int]]] | None:
    """The ranges of each row where `allowed` [batch, queries, keys] says nothing else; None: it does. `empty`: tokens
    that attend to nothing are in none, else there may be no such tokens."""
    count = allowed.sum(-1)  # a token is the one of this number in its range
    rows = []
    for counts in count.tolist():
        ranges, before = [], 0
        for place, number in enumerate(counts):
            if number == 1:
                ranges.append((place, place + 1))
            elif number == before + 1:
                ranges[-1] = (ranges[-1][0], place + 1)
            elif number or not empty:
                return None
            before = number
        rows.append(ranges)
    first = (places + 1 - count)[..., None]
    attended = (places >= first) & (places <= places[:, None])
    return rows if bool((allowed == attended).all()) else None


def _of_ranges(rows: list[list[tuple[int, int]]], length: int) -> Mask:
    if all(ranges == [(0, length)] for ranges in rows):
        return Mask()
    numbers = array.array("q", (number for row, ranges in enumerate(rows) for range_ in ranges for number in (row, *range_)))
    if not numbers:
        return Mask(reason=OTHER)
    # Python's memory, which is none of the step's: plans read the same.
    return Mask(ranges=torch.frombuffer(numbers, dtype=torch.int64).view(-1, 3))


def _of_lengths(mask: torch.Tensor, allowed: torch.Tensor, places: torch.Tensor, causal: bool, window: int | None, batch: int) -> Mask:
    length = places.numel()
    distance = places[:, None] - places[None, :]
    expected = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    if causal:
        expected = distance >= 0
    if window is not None and window < length:
        expected = expected & (distance < window)
    # Each token that is there attends to itself; the mask of an encoder may have one row for all.
    lengths = (allowed[:, 0].diagonal(dim1=-2, dim2=-1) if causal else allowed[:, 0, -1]).sum(-1)
    if mask.is_floating_point() and window is not None and bool((lengths + window <= length).any()):
        return Mask(reason=OTHER)  # padding that attends to nothing attends to everything where numbers are added
    seen = (places < lengths[:, None])[:, None, None, :]
    wanted = (expected[None, None] & seen).expand(mask.size(0), 1, length, length)
    if not bool((allowed == wanted).all()) or not bool((lengths > 0).all()):
        return Mask(reason=OTHER)
    if bool((lengths == length).all()):
        return Mask()
    return Mask(lengths=lengths if lengths.size(0) == batch else lengths.expand(batch).contiguous())
