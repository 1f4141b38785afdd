# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them."""
from __future__ import annotations

import re

from .library import ops


def byte_count(budget: int | str | None, whose: str) -> int | float | None:
    """Bytes, or as a float a part of what there is without a budget. Throws ValueError, which begins with `whose`."""
    if budget is None or (isinstance(budget, int) and not isinstance(budget, bool) and budget > 0):
        return budget
    text = budget if isinstance(budget, str) else ""
    if count := ops.parse_bytes(text):
        if count < 65536 and text.strip().isdigit():
            raise ValueError(f'{whose}: budget={budget!r} is so many bytes: write "{text.strip()}%" or "{text.strip()}GiB"')
        return count
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", text)
    if match and float(match[1]) > 0:
        return float(match[1]) / 100
    raise ValueError(f'{whose}: budget must be bytes, as 800000000, "10GiB" or "50%", is {budget!r}')
