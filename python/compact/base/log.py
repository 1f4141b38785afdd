# SPDX-License-Identifier: Apache-2.0
"""The log of the package."""
import logging

log = logging.getLogger("compact")


class Notes:
    """Lines of the log that are written once for a model."""

    def __init__(self):
        self._written: set[str] = set()

    def say(self, text: str, key: str = "") -> None:
        if (key or text) not in self._written:
            self._written.add(key or text)
            log.warning(f"compact: {text}")
