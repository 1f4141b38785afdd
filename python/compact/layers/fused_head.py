# SPDX-License-Identifier: Apache-2.0
"""Log probabilities for TRL's trainers, whose models have a fused head in place of one that makes logits."""
from __future__ import annotations

import weakref

import torch
from torch import nn

from ..base.trl_private import OUTPUTS
from .patched_forward import LOSS
from .token_log_probs import Head, token_statistics

_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # with a state of their loss


def remember(model: nn.Module) -> None:
    _models.add(model)


def _state_for(weight: torch.Tensor):
    """The state of the model whose head has this weight; None: compact.apply() was not given it, or leaves its loss alone."""
    if hasattr(weight, "ds_id"):  # DeepSpeed lets it go before the backward pass
        return None
    for model in _models:
        state = model.__dict__.get(LOSS)
        if state is not None and state.chunked and hasattr(model, "get_output_embeddings"):
            head = model.get_output_embeddings()
            if head is not None and getattr(head, "weight", None) is weight:
                return state
    return None


@torch.compiler.disable
def log_probs_for_trl(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, temperature: float,
    chunk_size: int, softcap: float | None, scale: float, outputs: tuple[str, ...],
) -> tuple[torch.Tensor | None, ...] | None:  # fmt: skip
    """The results of TRL's function of the same arguments: log probabilities, and each of OUTPUTS where it is asked for,
    else None; None in all where TRL is to compute them itself. Logits are softcap tanh(scale (h W^T + b) / softcap) / temperature."""
    state = _state_for(weight)
    if state is None or scale <= 0:
        return None
    state.scored += 1
    head = Head.of(hidden, temperature / scale, None if softcap is None else softcap / scale, state.tokens)
    wanted = tuple(name for name in OUTPUTS if name in outputs)
    log_probs, *found = token_statistics(hidden, weight, bias, targets, head, wanted)
    return log_probs, *(dict(zip(wanted, found)).get(name) for name in OUTPUTS)
