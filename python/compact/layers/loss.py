# SPDX-License-Identifier: Apache-2.0
"""The loss of language models from hidden states, in chunks of tokens: logits never exist at once."""
from __future__ import annotations

import inspect
import numbers
import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..base.library import can_compute_on, kind_of, ops, TYPES
from ..base.log import Notes
from ..base.torch_functions import OF_LOSSES, replaced_function
from ..base.torch_private import has_global_hooks, HOOKS, under_transform
from ..base.type_names import code_of, is_own_code, origin_of
from .call_arguments import CACHES
from .patched_forward import Forward, LOSS, STATE
from .plain_loss import makes_plain_loss


class LossState:
    """The state of a model whose loss may be made in chunks."""

    def __init__(self, tokens: int, chunked: bool, own_loss: str | None, cached: bool, notes: Notes):
        self.tokens, self.notes = tokens, notes
        self.chunked = chunked  # the policy wants no logits of all tokens
        self.cached = cached  # it may be asked for a cache, which training does not use
        self.own_loss = own_loss  # why the model's own loss always runs; None: it is made in chunks
        self.calls = 0
        self.scored = 0  # passes of TRL's fused head
        self.own: dict[str, int] = {}


class _Wanted(threading.local):
    """The head that is to return a loss in place of logits in this pass of this thread, and the loss's arguments."""

    head: nn.Module | None = None
    arguments: tuple = ()  # of linear_cross_entropy(): targets, count, tokens


_wanted = _Wanted()


def takes_cache(module: nn.Module) -> bool:
    """Whether a module is a model of transformers, whole or inside another one, which has the forward
    of its class and may be asked for a cache."""
    if not type(module).__mro__[0].__module__.startswith("transformers.models.") and not makes_plain_loss(type(module)):
        return False
    if any(len(set(layers)) < len(layers) for layers in module.modules() if isinstance(layers, nn.ModuleList)):
        return False  # a layer that runs twice finds in its cache what it has put there
    return "forward" not in module.__dict__ and "use_cache" in inspect.signature(type(module).forward).parameters


def own_loss(model: nn.Module, chunked: bool) -> str | None:
    """Why a model's own loss runs in every pass; None: chunks may replace it."""
    if not makes_plain_loss(type(model)):
        return "its forward does more with logits than to make the loss, or is none of transformers'"
    if not chunked:
        return "the policy or chunked_loss leaves it alone"
    if "forward" in model.lm_head.__dict__:
        return "the forward of lm_head was replaced"
    return None


def _only_of_shards(head: nn.Module) -> bool:
    return all(getattr(hook, "__module__", "").startswith("torch.distributed.fsdp") for kind in HOOKS for hook in getattr(head, kind).values())


def _chunks_problem(model: nn.Module, kwargs: dict) -> str | None:
    from transformers.loss.loss_utils import fixed_cross_entropy, ForCausalLMLoss

    if not model.training:
        return "the model is in eval mode; model.train() changes that"
    head = model.lm_head
    if type(head).__name__ == "FullyShardedDataParallel":
        return "lm_head is a unit of FullyShardedDataParallel by itself, whose weight is there while it runs alone"
    if STATE not in head.__dict__ or not isinstance(head, nn.Linear):
        return f"lm_head was replaced by another {type(head).__name__}: apply once that is done"
    if not isinstance(head.__dict__.get("forward"), Forward):
        return "the forward of lm_head was replaced"
    own = code_of(type(head).forward)
    if own is not code_of(nn.Linear.forward) or origin_of(own) != nn.Linear.__module__ or head.bias is not None:
        return "lm_head is not a plain Linear without a bias"
    if not _only_of_shards(head) or has_global_hooks():
        return "lm_head has a hook"
    if under_transform():
        return "a transform of torch.func or forward-mode differentiation runs"
    if getattr(model.config, "final_logit_softcapping", None) is not None:
        return "its logits are capped (final_logit_softcapping)"
    if model.loss_function is not ForCausalLMLoss or not is_own_code(ForCausalLMLoss) or not is_own_code(fixed_cross_entropy):
        return "the model has a loss_function of its own"
    if problem := replaced_function(OF_LOSSES):
        return problem
    keep = kwargs.get("logits_to_keep", 0)
    if isinstance(keep, torch.Tensor) or keep != 0:
        return "logits_to_keep is given"
    config = model.config.get_text_config()
    routed = kwargs.get("output_router_logits")
    if getattr(config, "output_router_logits", False) if routed is None else routed:
        return "the loss of its router is asked for (output_router_logits)"
    if kwargs.get("return_dict") is False or not getattr(model.config, "return_dict", True):
        return "a tuple is to be returned (return_dict)"
    if kwargs.get("ignore_index", -100) != -100 or kwargs.get("weight") is not None:
        return "the loss is given settings of its own"
    return None


def _leave_out_cache(model: nn.Module, kwargs: dict, notes: Notes) -> None:
    """Switches the cache off, which training does not use. But without a cache or a mask, transformers reads positions
    that begin again as several sequences in one row: a mask of ones has the effect of the cache."""
    kwargs["use_cache"] = False
    if kwargs.get("position_ids") is None or kwargs.get("attention_mask") is not None:
        return
    checkpointed = model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())  # without a cache, too
    x = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
    if getattr(model.config.get_text_config(), "use_cache", False) and not checkpointed and x is not None:
        kwargs["attention_mask"] = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        if not under_transform() and notes.first("positions") and bool((kwargs["position_ids"].diff(dim=-1) < 0).any()):
            notes.say("position_ids begin again within a row, and its tokens attend to all before them, as in transformers with a cache: use_cache=False makes of it several sequences")


def model_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a model for causal language modelling: in training, with labels and gradients on, the
    loss in chunks, and `logits` None."""
    state: LossState = model.__dict__[LOSS]
    own = type(model).forward
    if not torch.is_grad_enabled():
        return own(model, *args, **kwargs)
    if args:
        names = list(inspect.signature(own).parameters)[1:]
        kwargs = dict(zip(names, args)) | kwargs
        args = ()
    labels = kwargs.get("labels")
    if state.cached and (model.training or labels is not None) and kwargs.get("use_cache") is None and all(kwargs.get(name) is None for name in CACHES):
        _leave_out_cache(model, kwargs, state.notes)
    if labels is None or state.own_loss is not None:
        return own(model, *args, **kwargs)
    reason = _chunks_problem(model, kwargs)
    if reason is not None:
        state.own[reason] = state.own.get(reason, 0) + 1
        state.notes.say(f"the loss is made from all logits: {reason}")
        return own(model, *args, **kwargs)
    kwargs.pop("labels")
    targets = kwargs.pop("shift_labels", None)
    if targets is None:
        targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    before = _wanted.head, _wanted.arguments
    _wanted.head, _wanted.arguments = model.lm_head, (targets, kwargs.get("num_items_in_batch"), state.tokens)
    try:
        outputs = own(model, *args, **kwargs)
    finally:
        _wanted.head, _wanted.arguments = before
    state.calls += 1
    fields = dict(outputs.items()) | {"loss": outputs.logits, "logits": None}
    return type(outputs)(**fields)


def head_forward(head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The forward of a head: logits, or the loss where model_forward() asked for it."""
    if _wanted.head is not head:
        return type(head).forward(head, hidden)
    return linear_cross_entropy(hidden, head.weight, *_wanted.arguments)


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, count: Any = None, tokens: int = 0
) -> torch.Tensor:
    """The sum of cross-entropies of hidden weight^T, divided by `count`, or their mean.

    hidden [..., width], weight [vocabulary, width], targets int64 [...], -100 ignored. Logits are made
    for `tokens` tokens at a time (0: as many as are fast) and gradients with them, so that what is
    held until the backward pass are those of hidden and weight. Under autocast products are made in
    its type.
    """
    for name, x in (("hidden", hidden), ("weight", weight), ("targets", targets)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"compact.linear_cross_entropy: {name} must be a tensor, is a {type(x).__name__}")
    if weight.dim() != 2 or weight.numel() == 0 or hidden.dim() == 0:
        raise ValueError(f"compact.linear_cross_entropy: hidden must be [..., width] and weight [vocabulary, width], are {[*hidden.shape]}, {[*weight.shape]}")
    if not isinstance(tokens, numbers.Integral) or tokens < 0:
        raise ValueError(f"compact.linear_cross_entropy: tokens must be a whole number from 0 on, is {tokens!r}")
    tokens, kind = int(tokens), kind_of(hidden)
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if hidden.dtype not in TYPES or not can_compute_on(kind):
        return _from_logits(hidden, weight, targets, count)
    targets = targets.to(hidden.device, torch.int64 if targets.dtype == torch.uint8 else None)  # the two types that torch takes
    if count is None:
        count = (targets != -100).sum()
    scale = 1.0
    if not isinstance(count, torch.Tensor) or not count.is_cuda:
        count = float(count)
        if count > 0:
            scale, count = 1 / count, 1.0
    loss = ops.chunked_cross_entropy(hidden, weight, targets, scale, tokens, 0.0)
    if isinstance(count, torch.Tensor):
        return loss / count
    return loss if count == 1 else loss / loss.new_tensor(count)  # by 0 as transformers has it


def _from_logits(hidden, weight, targets, count):
    logits = functional.linear(hidden, weight).float().reshape(-1, weight.shape[0])
    reduction = "mean" if count is None else "sum"
    loss = functional.cross_entropy(logits, targets.flatten().to(logits.device), reduction=reduction)
    return loss if count is None else loss / count
