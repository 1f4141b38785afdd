# SPDX-License-Identifier: Apache-2.0
"""The device that tests run on: COMPACT_TEST_DEVICE, cpu unless it says another, as cuda does."""

import os

DEVICE = os.environ.get("COMPACT_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import pytest  # noqa: E402
import torch  # noqa: E402

import compact  # noqa: E402

# Tests of memory or arithmetic of a CPU, or after which a process can no longer use a GPU.
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="is for a CPU")


class GpuMeter:
    """compact.Meter's for the current GPU, by the counters of torch's allocator: bytes that were asked for."""

    def __enter__(self):
        self._before = self._counted("current")
        self.reset_peak()
        self._peak = None
        return self

    def __exit__(self, *error):
        self._peak = self.peak

    @staticmethod
    def _counted(what):
        return torch.cuda.memory_stats()[f"requested_bytes.all.{what}"]

    @property
    def now(self):
        return self._counted("current") - self._before

    @property
    def peak(self):
        return self._counted("peak") - self._before if self._peak is None else self._peak

    @staticmethod
    def reset_peak():
        torch.cuda.reset_peak_memory_stats()


def _make_workspaces():
    """Makes cuBLAS's workspaces, which a process has for good: of this thread, and of autograd's."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = torch.randn(64, 64, dtype=dtype, requires_grad=True)
        torch.addmm(x[0], x, x).sum().backward()


if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
    torch.use_deterministic_algorithms(True, warn_only=True)

    class Generator(torch.Generator):
        """On the default device, as tensors are."""

        def __new__(cls, device=DEVICE):
            return super().__new__(cls, device)

    torch.Generator = Generator
    compact.Meter = GpuMeter
    _make_workspaces()
