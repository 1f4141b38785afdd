# SPDX-License-Identifier: Apache-2.0
"""Trains larger models in the memory you have: saved tensors of PyTorch models, decided one by one."""
from ._library import __version__
from .memory import Meter

__all__ = ["Meter", "__version__"]
