# SPDX-License-Identifier: Apache-2.0
"""Trains larger models in the memory you have: saved tensors of PyTorch models, decided one by one.

    compact.apply(model, policy="exact")
    print(compact.report(model))
"""
from . import optim
from .any_network.saved_tensors import saved_tensors, SavedTensor, SavedTensorsReport
from .base.library import __version__
from .base.meter import Meter
from .base.policy import policy_text, presets
from .layers.apply import apply, families, remove, report
from .layers.loss import linear_cross_entropy
from .layers.report import LayerReport, Report
from .layers.token_log_probs import token_log_probs
from .planning.plan import Plan, plan

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
    "token_log_probs",
]


def __getattr__(name):
    if name == "hf":  # it imports transformers
        import importlib

        return importlib.import_module(".hf", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
