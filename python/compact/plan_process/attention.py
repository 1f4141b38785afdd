# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention on the meta device, by the kernel that the planned device would take."""
from __future__ import annotations

import torch
from torch.nn import functional

from ..base.torch_private import attention_choice, efficient_attention, flash_attention, flash_attention_on_cpu

_own = functional.scaled_dot_product_attention


def _one_row(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape[-1], dtype=t.dtype).expand(t.shape)


def _as_bias(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _on_cpu(q, k, v, mask, dropout, causal, scale, grouped):
    rows = [_one_row(t).requires_grad_(t.requires_grad) for t in (q, k, v)]
    fake_mask = None if mask is None else _one_row(mask).requires_grad_(mask.requires_grad)
    if attention_choice(*rows, fake_mask, dropout, causal, scale=scale, enable_gqa=grouped) != 1:  # flash attention
        return None
    bias = _as_bias(mask, q.dtype)
    return flash_attention_on_cpu(q, k, v, dropout, causal, attn_mask=bias, scale=scale)[0]


def _on_cuda(q, k, v, mask, dropout, causal, scale, grouped):
    if q.dtype in (torch.bfloat16, torch.float16) and mask is None and q.size(-1) % 8 == 0 and q.size(-1) <= 256:
        return flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    if q.dtype == torch.float64 or q.size(-1) % (4 if q.dtype == torch.float32 else 8):
        return None
    if grouped and q.size(1) != k.size(1):
        return None  # products and a softmax: the efficient kernel knows no groups
    bias = _as_bias(mask, q.dtype)
    bias = None if bias is None else bias.expand(q.size(0), q.size(1), q.size(2), k.size(2))
    return efficient_attention(q, k, v, bias, True, dropout, causal, scale=scale)[0]


def use(device: str) -> None:
    """From here on, in this process, attention on the meta device is that of "cpu" or "cuda"."""
    fused = _on_cuda if device == "cuda" else _on_cpu

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        out = None
        if query.device.type == "meta" and query.dim() == 4:
            out = fused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if out is not None:
            return out
        return _own(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = attention
