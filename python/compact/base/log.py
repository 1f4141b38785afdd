# SPDX-License-Identifier: Apache-2.0
"""The log of the package."""
import logging

log = logging.getLogger("compact")


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
