# SPDX-License-Identifier: Apache-2.0
"""The log of the package."""
import logging
import sys
import warnings

log = logging.getLogger("compact")


# Packages whose frames may stand between a line of the user's and the package.
_BETWEEN = frozenset({"compact", "contextlib", "torch", "transformers", "accelerate", "peft"})


def warn(text: str) -> None:
    """A warning that names the line of the user's that led here: the first one outside of the package, and of what calls it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"compact.{text}", stacklevel=level)


class Notes:
    """Lines of the log that are written once for a model."""

    fits_served = False  # a budget holds where its layers are served

    def __init__(self):
        self._written: set[str] = set()

    def first(self, key: str) -> bool:
        """True the first time that this key is asked for."""
        known = key in self._written
        self._written.add(key)
        return not known

    def say(self, text: str, key: str = "") -> None:
        if self.first(key or text):
            log.warning(f"compact: {text}")
