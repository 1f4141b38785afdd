# SPDX-License-Identifier: Apache-2.0
"""The search for a policy of a network that is held as a whole: the most bytes that what it saves may take
in a step under a budget, since the fewer are held, the more operations run again."""
from __future__ import annotations

import dataclasses
from typing import Any

from ..base.policy import policy_text

_LOSSLESS = ("off", "exact")  # the faster first
_ROUNDED = ("gact-l1", "gact-l2", "gact-l3")  # by their errors
_ENOUGH = 0.01  # part of the bytes that are held without a budget within which the search ends
_TRIES = 10
_NUMBERS = 1024  # bytes of masks' numbers, which a pass under a budget may hold and a plan knows without them


@dataclasses.dataclass(frozen=True)
class Found:
    text: str  # the policy, or a preset's name
    reserved: int
    stored: int  # of what is saved for the backward pass
    seconds: float
    lossless: bool
    exact: bool  # gradients are


class NetworkSearch:
    """Remembers what it has planned. The same budget has the same answer."""

    def __init__(self, step: Any, allow: str, tf32: bool):
        self._step, self._tf32 = step, tf32
        self._known: dict[str, Found | None] = {}
        self._least: dict[str, Found | None] = {}
        moments, usual = [""], step.moments()
        if "quantize" in allow:
            moments += [kind for kind in ("bf16", "f8") if usual == "f32" or (usual and usual != "f8" and kind == "f8")]
        self._levels = [(_lines(kind), True) for kind in moments]
        if "quantize" in allow:
            self._levels.append((_lines(moments[-1]), False))

    def find(self, budget: int) -> Found | None:
        """The fastest that loses nothing, or else, where that is allowed, loses least; None: no step takes so little."""
        for lines, exact in self._levels:
            if not exact:
                found = next((p for name in _ROUNDED if (p := self._planned(name, lines, exact=False)).reserved <= budget), None)
            else:
                found = next((p for name in _LOSSLESS if (p := self._planned(name, lines)).reserved <= budget), None) or self._within(budget, lines)
            if found is not None:
                return found
        return None

    def least(self) -> int:
        """Bytes of the step that takes least, which find() finds for so many."""
        all = []
        for lines, exact in self._levels:
            all += [self._planned(name, lines, exact=exact) for name in (_LOSSLESS if exact else _ROUNDED)]
            all += [self._least_of(lines)] if exact else []
        return min(p.reserved for p in all if p is not None)

    def added_seconds(self, found: Found) -> float:
        """What it takes beside a step that holds everything."""
        return found.seconds - self._planned(_LOSSLESS[0], "").seconds

    def _within(self, budget: int, lines: str) -> Found | None:
        """The one that may hold most, of those that run products and the like again."""
        exact = self._planned("exact", lines)
        if exact.reserved - exact.stored > budget:  # whatever is held
            return None
        found = self._between(budget, lines)
        if found is None:
            found = self._least_of(lines)
        return found if found is not None and found.reserved <= budget else None

    def _least_of(self, lines: str) -> Found | None:
        if lines not in self._least:
            self._least[lines] = self._between(0, lines, least=True)
        return self._least[lines]

    def _between(self, budget: int, lines: str, least: bool = False) -> Found | None:
        exact = self._planned("exact", lines)
        low, high, found = 0, exact.stored, None  # too few bytes, or few enough; and too many
        guess = exact.stored - (exact.reserved - budget)
        for _ in range(_TRIES):
            if not low < guess < high:
                guess = (low + high) // 2
            if guess <= 0 or high - low <= _ENOUGH * exact.stored:
                break
            planned = self._planned("exact", lines, guess)
            if planned is None:  # it holds more, whatever runs again
                low, guess = guess, 0
            elif least:
                found = planned if found is None or planned.reserved < found.reserved else found
                high, guess = guess, 0
            elif planned.reserved <= budget:
                found = planned if found is None or planned.seconds < found.seconds else found
                low, guess = guess, guess + budget - planned.reserved
            else:
                high, guess = guess, guess - (planned.reserved - budget)
        return found

    def _planned(self, name: str, lines: str, stored: int | None = None, exact: bool = True) -> Found | None:
        """None: it cannot be held within so many bytes."""
        text = name if not lines and stored is None else policy_text(name) + lines
        if stored is not None:
            text += f"slot role:heavy = recompute:budget={stored}\n"
        if text not in self._known:
            self._step.treat(text)
            try:
                # The first pass of a network does not know yet how much a pass saves.
                traces = [self._step.run(operations=i == 1) for i in range(2)]
            except ValueError:
                if stored is None:
                    raise
                self._known[text] = None
            else:
                reserved = max(self._step.reserved(t) for t in traces) + (_NUMBERS if stored is not None else 0)
                seconds = traces[1].seconds(self._tf32)
                self._known[text] = Found(text, reserved, self._step.stored(), seconds, lossless=exact and not lines, exact=exact)
        return self._known[text]


def _lines(moments: str) -> str:
    return f"moment * = {moments}\n" if moments else ""
