# SPDX-License-Identifier: Apache-2.0
"""What a layer is given beside its input, as a block takes it, or why a block cannot."""
from __future__ import annotations

import threading

import torch
from torch import nn

from ._families import Family
from ._masks import read_mask
from ._stand_in import STATE

try:
    from transformers import modeling_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError:  # then no model has a layer of a family
    modeling_utils = sdpa_attention_forward = None

CACHES = ("past_key_values", "cache")  # what versions of transformers call it
# Arguments that change nothing here: what they are for has been done before a layer is called.
_WITHOUT_MEANING = frozenset({"num_items_in_batch", "position_ids", "return_dict", "output_hidden_states"})
_SWITCHES = frozenset({"use_cache", "output_attentions", "output_hidden_states", "return_dict"})  # False is none


class _Pass(threading.local):
    """Which pass of a model runs on this thread: what its layers share is read once in each."""

    number = 0


_pass = _Pass()


def begin_pass() -> None:
    """To be called by the first layer of a model."""
    _pass.number += 1


def arguments(names: tuple[str, ...], args: tuple, kwargs: dict) -> tuple[dict, str | None]:
    """What a layer was told beside its input, and why a block cannot do with it."""
    told = dict(zip(names, args))
    if len(args) > len(names):
        return told, f"it was given {len(args) + 1} arguments by position"
    told.update(kwargs)
    told = {k: v for k, v in told.items() if v is not None and not (v is False and k in _SWITCHES)}
    if any(name in told for name in CACHES):
        return told, "a cache of keys and values is passed; give use_cache=False"
    told.pop("use_cache", None)
    known = _WITHOUT_MEANING | {"attention_mask", "position_embeddings"}
    unknown = [key for key in told if key not in known]
    return told, f"it was given {', '.join(sorted(unknown))}" if unknown else None


def attended(attention: nn.Module, family: Family, window: int | None, told: dict, x: torch.Tensor) -> tuple[torch.Tensor | None, str | None]:
    """Lengths of padded sequences, and why a block's attention is another one than the layer's."""
    length = x.size(1)
    implementation = attention.config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        return None, f"its attention is {implementation}"
    if not _is_usual(implementation):
        return None, f"its attention {implementation} is another function than transformers' own"
    if implementation == "sdpa" and getattr(attention, "attn_logit_softcapping", None) is not None:
        return None, "its attention is sdpa, which leaves out the cap of logits that its configuration asks for"
    if getattr(attention, "is_causal", family.causal) != family.causal:
        return None, f"its attention has is_causal={attention.is_causal}"
    if family.causal and not getattr(attention.config, "is_causal", True):
        return None, "its configuration has is_causal=False"
    mask = told.get("attention_mask")
    if mask is None:
        # Without a mask `eager` attends to all tokens, and no kernel knows of a window.
        if family.causal and implementation == "eager":
            return None, "its attention is eager and has no mask"
        return None, "its attention has a window and no mask" if window is not None and window < length else None
    if type(mask) is not torch.Tensor or mask.requires_grad:
        return None, f"its mask is a {type(mask).__name__}{' with a gradient' if mask.requires_grad else ''}"
    lengths, reason = read_mask(mask, length, family.causal, window, _pass.number)
    if lengths is not None and lengths.size(0) != x.size(0):
        lengths = lengths.expand(x.size(0)).contiguous()
    return lengths, reason


def _is_usual(implementation: str) -> bool:
    """Whether transformers computes this attention by its own function."""
    if implementation == "eager":  # each model's own, whose module is watched
        return "eager" not in modeling_utils.ALL_ATTENTION_FUNCTIONS
    return modeling_utils.ALL_ATTENTION_FUNCTIONS[implementation] is sdpa_attention_forward


def tables(told: dict, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    """Cosines and sines as the library takes them; the tensors of a pass are made once."""
    given = told.get("position_embeddings")
    if given is None:
        return "it was given no position embeddings"
    cos, sin = given
    if cos.requires_grad or sin.requires_grad:
        return "its position embeddings have a gradient"
    if cos.dim() != 3 or cos.size(1) != x.size(1) or cos.size(0) not in (1, x.size(0)):
        return f"its position embeddings are {tuple(cos.shape)}"
    return _made_once(cos, sin)


def _made_once(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    known = cos.__dict__.get(STATE)  # layers of one pass are given the same tensors
    key = (_pass.number, cos._version, sin._version)
    if known is not None and known[2] is sin and known[3] == key:
        return known[0], known[1]
    half = cos.size(-1) // 2  # both halves of a row are alike
    tables = [t.detach()[..., :half].reshape(-1, half).to(torch.float32).contiguous() for t in (cos, sin)]
    cos.__dict__[STATE] = (*tables, sin, key)
    return tables[0], tables[1]
