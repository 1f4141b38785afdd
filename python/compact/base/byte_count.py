# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them."""
from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def byte_count(budget: int | str | None, whose: str) -> int | float | None:
    """Bytes, or as a float a part of what there is without a budget. Throws ValueError, which begins with `whose`."""
    if budget is None or (isinstance(budget, int) and not isinstance(budget, bool) and budget > 0):
        return budget
    text = budget if isinstance(budget, str) else ""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match and float(match[1]) * _UNITS[(match[2] or "").lower()] >= 1:
        return int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", text)
    if match and float(match[1]) > 0:
        return float(match[1]) / 100
    raise ValueError(f'{whose}: budget must be bytes, as 800000000, "10GiB" or "50%", is {budget!r}')
