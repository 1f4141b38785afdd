# SPDX-License-Identifier: Apache-2.0
"""The private names of TRL that the package uses: a version in which they differ changes this file alone."""
from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

ARGUMENTS = ("hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping", "logit_scale", "outputs")
OUTPUTS = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")  # in the order in which they follow the log probabilities


class _LogProbs:
    """Stands in for the function by which the forward pass with fused_lm_head=True makes log probabilities."""

    def __init__(self, own: type, ours: Callable):
        self._own, self._ours = own, ours

    def apply(self, *given: Any) -> tuple:
        found = self._ours(*given)
        return self._own.apply(*given) if found is None else found


def serve_fused_heads(ours: Callable) -> bool:
    """Lets TRL's fused heads of this process make log probabilities by ours(*ARGUMENTS), where that is not None; where TRL is
    not imported, or knows other arguments, nothing changes. Then positions without a label are left out on a CPU, too, where
    TRL computes them and throws them away."""
    utils = sys.modules.get("trl.trainer.utils")
    own, only_labels = getattr(utils, "_ChunkedLogProbFunction", None), getattr(utils, "_use_triton", None)
    if isinstance(own, _LogProbs):
        return True
    if own is None or only_labels is None or tuple(inspect.signature(own.forward).parameters)[1:] != ARGUMENTS:
        return False
    utils._ChunkedLogProbFunction = _LogProbs(own, ours)
    utils._use_triton = lambda device: device.type == "cpu" or only_labels(device)
    return True
