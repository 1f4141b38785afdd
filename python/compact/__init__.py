# SPDX-License-Identifier: Apache-2.0
"""Trains larger models in the memory you have: saved tensors of PyTorch models, decided one by one.

    compact.apply(model, policy="exact")
    print(compact.report(model))
"""
from . import optim
from ._library import __version__
from ._loss import linear_cross_entropy
from ._memory import Meter
from ._saved_tensors import SavedTensor, SavedTensorsReport, saved_tensors
from ._apply import LayerReport, Report, apply, families, remove, report
from ._planning.plan import Plan, plan
from ._policy import policy_text, presets

__all__ = [
    "LayerReport",
    "Meter",
    "Plan",
    "Report",
    "SavedTensor",
    "SavedTensorsReport",
    "__version__",
    "apply",
    "families",
    "linear_cross_entropy",
    "optim",
    "plan",
    "policy_text",
    "presets",
    "remove",
    "report",
    "saved_tensors",
]


def __getattr__(name):
    if name == "hf":  # it imports transformers
        import importlib

        return importlib.import_module(".hf", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
