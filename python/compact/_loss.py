# SPDX-License-Identifier: Apache-2.0
"""The loss of language models from hidden states, in chunks of tokens: logits never exist at once."""
from __future__ import annotations

import inspect
import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ._library import ops
from ._layers import STATE, say_once

# Whose forward is hidden states, lm_head, loss_function, and nothing between: what a loss in chunks
# can stand in for.
MODELS = frozenset(
    f"transformers.models.{module}.modeling_{module}.{name}"
    for module, name in (
        ("llama", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
    )
)


class LossState:
    """What is known of a model whose loss is made in chunks."""

    def __init__(self, tokens: int):
        self.tokens = tokens
        self.chunked = True  # else the model's own loss runs
        self.calls = 0
        self.own: dict[str, int] = {}


class _Wanted(threading.local):
    """The loss that the head of a model is to give in place of logits, on this thread."""

    head: nn.Module | None = None
    targets: torch.Tensor | None = None
    count: Any = None
    tokens = 0


_wanted = _Wanted()


def serves(model: nn.Module) -> bool:
    return any(f"{cls.__module__}.{cls.__qualname__}" in MODELS for cls in type(model).__mro__)


def _why_not(model: nn.Module, kwargs: dict) -> str | None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    head = model.lm_head
    if STATE not in head.__dict__ or not isinstance(head, nn.Linear):
        return f"lm_head was replaced by a {type(head).__name__}"
    if inspect.unwrap(type(head).forward) is not nn.Linear.forward or head.bias is not None:
        return "lm_head is no plain Linear without a bias"
    if model.loss_function is not ForCausalLMLoss:
        return "the model has a loss_function of its own"
    if kwargs.get("logits_to_keep", 0) != 0:
        return "logits_to_keep is given"
    if kwargs.get("return_dict") is False or not getattr(model.config, "return_dict", True):
        return "a tuple is to be returned (return_dict)"
    if kwargs.get("ignore_index", -100) != -100 or kwargs.get("weight") is not None:
        return "the loss is given settings of its own"
    return None


def model_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a model for causal language modelling: with labels, and gradients on, the loss
    in chunks, and `logits` None."""
    state: LossState = model.__dict__[STATE]
    own = type(model).forward
    if not torch.is_grad_enabled():
        return own(model, *args, **kwargs)
    labels = kwargs.get("labels")
    in_training = model.training or labels is not None
    if in_training and kwargs.get("use_cache") is None and kwargs.get("past_key_values") is None:
        kwargs["use_cache"] = False  # nobody continues a sequence with keys that are being trained
    if labels is None or not state.chunked:
        return own(model, *args, **kwargs)
    reason = _why_not(model, kwargs)
    if reason is not None:
        state.own[reason] = state.own.get(reason, 0) + 1
        say_once(f"the loss is made from all logits: {reason}", f"loss: {reason}")
        return own(model, *args, **kwargs)
    kwargs.pop("labels")
    targets = kwargs.pop("shift_labels", None)
    if targets is None:
        targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    before = (_wanted.head, _wanted.targets, _wanted.count, _wanted.tokens)
    _wanted.head, _wanted.targets = model.lm_head, targets
    _wanted.count, _wanted.tokens = kwargs.get("num_items_in_batch"), state.tokens
    try:
        outputs = own(model, *args, **kwargs)
    finally:
        _wanted.head, _wanted.targets, _wanted.count, _wanted.tokens = before
    state.calls += 1
    fields = dict(outputs.items()) | {"loss": outputs.logits, "logits": None}
    return type(outputs)(**fields)


def head_forward(head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The forward of a head: logits, or the loss where the model's forward wants it."""
    if _wanted.head is not head:
        return type(head).forward(head, hidden)
    return linear_cross_entropy(hidden, head.weight, _wanted.targets, _wanted.count, _wanted.tokens)


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, count: Any = None, tokens: int = 0
) -> torch.Tensor:
    """The sum of cross-entropies of hidden weight^T, divided by `count`, or their mean.

    hidden [..., width], weight [vocabulary, width], targets int64 [...], -100 ignored. Logits are made
    for `tokens` tokens at a time (0: as many as are fast) and gradients with them, so that what is
    held until the backward pass are those of hidden and weight. Under autocast products are made in
    its type.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if hidden.dtype not in (torch.float32, torch.bfloat16):
        return _from_logits(hidden, weight, targets, count)
    targets = targets.to(hidden.device)
    if count is None:
        count = (targets != -100).sum()
    scale = 1.0
    if not isinstance(count, torch.Tensor) or not count.is_cuda:
        count = int(count)
        if count > 0:
            scale, count = 1 / count, 1
    loss = ops.chunked_cross_entropy(hidden, weight, targets, scale, tokens, 0.0)
    if isinstance(count, torch.Tensor):
        return loss / count
    return loss if count == 1 else loss * float("nan")  # as the mean of nothing is


def _from_logits(hidden, weight, targets, count):
    logits = functional.linear(hidden, weight).float().flatten(0, -2)
    reduction = "mean" if count is None else "sum"
    loss = functional.cross_entropy(logits, targets.flatten().to(logits.device), reduction=reduction)
    return loss if count is None else loss / count
