# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of a layer beside its input, as a block takes them, or why a block cannot."""
from __future__ import annotations

import threading

import torch
from torch import nn

from ..base.torch_private import version_of
from ..base.transformers_private import attention_of
from ..base.type_names import code_of
from .families import Family
from .masks import Mask, read_mask
from .patched_forward import STATE

try:
    from transformers import modeling_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError:  # then no model has a layer of a family
    modeling_utils = sdpa_attention_forward = None

CACHES = ("past_key_values", "cache")  # its names in versions of transformers
# Arguments that the model has already acted on when it calls its layers, which ignore them.
_IGNORED = frozenset({"num_items_in_batch", "position_ids", "return_dict", "output_hidden_states"})
# Where packed sequences begin, for flash attention; what is served reads that from masks, as sdpa and eager attention do.
_OF_FLASH = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"})
_SWITCHES = frozenset({"use_cache", "output_attentions", "output_hidden_states", "return_dict"})  # False says the same as no argument


class _Pass(threading.local):
    """The number of the pass of a model that runs on this thread; tensors that its layers share are read once in each pass."""

    number = 0


_pass = _Pass()


def begin_pass() -> None:
    """The first layer of a model calls it."""
    _pass.number += 1


def arguments_by_name(names: tuple[str, ...], args: tuple, kwargs: dict) -> tuple[dict, str | None]:
    """The arguments of a call beside the input, by name, and why a block cannot take them."""
    arguments = dict(zip(names, args))
    if len(args) > len(names):
        return arguments, f"it was given {len(args) + 1} arguments by position"
    arguments.update(kwargs)
    arguments = {k: v for k, v in arguments.items() if v is not None and not (v is False and k in _SWITCHES)}
    if any(name in arguments for name in CACHES):
        return arguments, "a cache of keys and values is passed; give use_cache=False"
    arguments.pop("use_cache", None)
    known = _IGNORED | _OF_FLASH | {"attention_mask", "position_embeddings"}
    unknown = [key for key in arguments if key not in known]
    return arguments, f"it was given {', '.join(sorted(unknown))}" if unknown else None


def attention_mask(attention: nn.Module, family: Family, numbers: dict[str, float], training: bool, arguments: dict, x: torch.Tensor) -> Mask:
    """The meaning of the mask of a call, or why a block's attention would differ from the layer's. `numbers`: the block's."""
    reason = _attention_problem(attention, family)
    if reason is not None:
        return Mask(reason=reason)
    length, window, mask = x.size(1), numbers.get("window") or None, arguments.get("attention_mask")
    if mask is None:
        # Without a mask `eager` attends to all tokens, and kernels ignore a window.
        if family.causal and attention_of(attention.config) == "eager":
            return Mask(reason="its attention is eager and has no mask")
        return Mask(reason="its attention has a window and no mask" if window is not None and window < length else None)
    if type(mask) is not torch.Tensor or mask.requires_grad:
        return Mask(reason=f"its mask is a {type(mask).__name__}{' with a gradient' if mask.requires_grad else ''}")
    if mask.dtype == torch.bool and attention_of(attention.config) == "eager":
        return Mask(reason="its attention is eager, which adds masks, and its mask is one of booleans")
    read = read_mask(mask, length, family.causal, window, _pass.number, x.size(0))
    if read.ranges is not None and training and numbers.get("attention_dropout"):
        return Mask(reason="sequences are packed or padded at the beginning, and its attention has dropout")
    if read.ranges is not None and numbers.get("softcap"):
        return Mask(reason="sequences are packed or padded at the beginning, and its attention has a cap of logits")
    return read


def _attention_problem(attention: nn.Module, family: Family) -> str | None:
    implementation = attention_of(attention.config)
    if implementation not in ("sdpa", "eager"):
        return f"its attention is {implementation}"
    names = getattr(code_of(type(attention).forward), "__globals__", {})
    if not _is_own_attention(implementation) or names.get("ALL_ATTENTION_FUNCTIONS") is not modeling_utils.ALL_ATTENTION_FUNCTIONS:
        return f"its attention {implementation} is another function than transformers' own"
    if implementation == "sdpa" and getattr(attention, "attn_logit_softcapping", None) is not None:
        return "its attention is sdpa, which leaves out the cap of logits that its configuration asks for"
    if getattr(attention, "is_causal", family.causal) != family.causal:
        return f"its attention has is_causal={attention.is_causal}"
    if family.causal and not getattr(attention.config, "is_causal", True):
        return "its configuration has is_causal=False"
    return None


def _is_own_attention(implementation: str) -> bool:
    """Whether transformers computes this attention by its own function."""
    if implementation == "eager":  # each model has its own function, and LayerState watches its module
        return "eager" not in modeling_utils.ALL_ATTENTION_FUNCTIONS
    return modeling_utils.ALL_ATTENTION_FUNCTIONS[implementation] is sdpa_attention_forward


def rotary_tables(arguments: dict, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    """Cosines and sines of rotary embeddings as the library takes them, made once in a pass; or why there are none."""
    given = arguments.get("position_embeddings")
    if given is None:
        return "it was given no position embeddings"
    cos, sin = given
    if cos.requires_grad or sin.requires_grad:
        return "its position embeddings have a gradient"
    if cos.dim() != 3 or cos.size(1) != x.size(1) or cos.size(0) not in (1, x.size(0)):
        return f"its position embeddings are {tuple(cos.shape)}"
    return _tables_of_pass(cos, sin)


def _halves_differ(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether a row's halves are not alike. On a GPU, which would be waited for, in one pass of 1,024."""
    if cos.is_meta or (not cos.is_cpu and _pass.number % 1024 != 1):
        return False
    half = cos.size(-1) // 2
    return any(not torch.equal(t[..., :half], t[..., half:]) for t in (cos, sin))


def _tables_of_pass(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    known = cos.__dict__.get(STATE)  # layers of one pass get the same tensors
    key = (_pass.number, version_of(cos), version_of(sin))
    if known is not None and known[2] is sin and known[3] == key:
        return known[0], known[1]
    if _halves_differ(cos, sin):
        return "the two halves of its position embeddings differ"
    half = cos.size(-1) // 2
    tables = [t.detach()[..., :half].reshape(-1, half).to(torch.float32).contiguous() for t in (cos, sin)]
    cos.__dict__[STATE] = (*tables, sin, key)
    return tables[0], tables[1]
