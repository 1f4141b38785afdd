# SPDX-License-Identifier: Apache-2.0
"""Exact bytes of tensors on the CPU, where torch has no counter of its own."""
from .library import classes


class Meter:
    """Counts what CPU tensors take while it is entered: bytes beyond what was there at the start.

    It counts in the thread that enters it and in the backward passes that this thread starts. It
    cannot run beside torch.profiler.

        with compact.Meter() as meter:
            step()
        print(meter.peak)
    """

    def __init__(self):
        self._meter = classes.Meter()

    def __enter__(self):
        self._meter.start()
        return self

    def __exit__(self, *error):
        self._meter.stop()

    @property
    def now(self):
        """Bytes that live now."""
        return self._meter.now()

    @property
    def peak(self):
        """The most that lived since the start, or since reset_peak()."""
        return self._meter.peak()

    def reset_peak(self):
        self._meter.reset_peak()
