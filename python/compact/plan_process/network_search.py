# SPDX-License-Identifier: Apache-2.0
"""The search for a policy of a network that is held as a whole: the largest part of what it saves that may be
held in a step under a budget, since the less is held, the more operations run again."""
from __future__ import annotations

import dataclasses
from typing import Any

from ..base.policy import policy_text

_LOSSLESS = ("off", "exact")  # the faster first
_ROUNDED = ("gact-l1", "gact-l2", "gact-l3")  # by their errors
# Percent of what is saved. Peaks do not always fall with them, since what is rebuilt at a time grows.
_PARTS = (90, 80, 70, 60, 55, 50, 45, 40, 36, 33, 30, 27, 24, 21, 18, 16, 14, 12, 10, 5)


@dataclasses.dataclass(frozen=True)
class Found:
    text: str  # the policy, or a preset's name
    reserved: int  # by a step at most
    lossless: bool
    exact: bool  # gradients are


class NetworkSearch:
    """Remembers what it has planned. The same budget has the same answer.

    Under a part a pass may let a tensor go an operation earlier or later than its plan, so that what a step takes
    counts with one more, the largest. Values decide what some networks hold, as of experts' indices: these are counted
    with a quarter of it for their codes, which are made while it is there.
    """

    def __init__(self, step: Any, allow: str):
        self._step = step
        self._known: dict[str, Found] = {}
        moments, usual = [""], step.moments()
        if usual and "+" not in usual:
            if place := next((place for place in ("+disk", "+offload") if place[1:] in allow), ""):
                moments.append(usual + place)
            elif "quantize" in allow:
                moments += [kind for kind in ("bf16", "f8") if usual == "f32" or (usual != "f8" and kind == "f8")]
        self._levels = [(_lines(kind), True) for kind in moments]
        self._same = {_lines(kind) for kind in moments if kind.startswith(usual)} | {""}  # lines that lose nothing
        if "quantize" in allow:
            self._levels.append((_lines(moments[-1]), False))

    def find(self, budget: int) -> Found | None:
        """The one that holds most and loses nothing, or else, where that is allowed, loses least; None: no step takes so little."""
        return next((found for found in self._all() if found.reserved <= budget), None)

    def least(self) -> int:
        """Bytes of the step that takes least."""
        return min(found.reserved for found in self._all())

    def _all(self) -> Any:
        for lines, exact in self._levels:
            for name in _LOSSLESS if exact else _ROUNDED:
                yield self._planned(name, lines, exact=exact)
            for part in _PARTS if exact else ():
                yield self._planned("exact", lines, part)

    def _planned(self, name: str, lines: str, part: int | None = None, exact: bool = True) -> Found:
        text = name if not lines and part is None else policy_text(name) + lines
        if part is not None:
            text += f"slot role:heavy = recompute:budget={part}%\n"
        if text not in self._known:
            self._step.treat(text)
            # The first pass of a network does not know yet how much a pass saves.
            reserved = max(self._step.reserved(self._step.run()) for _ in range(1 if part is None else 2))
            largest = self._step.largest_saved()
            reserved += largest if part is not None else 0
            reserved += largest // 4 if name in _ROUNDED or (name != "off" and self._step.holds_by_values()) else 0
            self._known[text] = Found(text, reserved, exact and lines in self._same, exact)
        return self._known[text]


def _lines(moments: str) -> str:
    return f"moment * = {moments}\n" if moments else ""
