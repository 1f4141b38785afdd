# SPDX-License-Identifier: Apache-2.0
"""The table of transformers' layers that blocks of the library can stand in for.

A family says where a layer has the tensors of a block. A new one is a row of FAMILIES, its numbers in
layer_numbers.py and a case in python/tests/layers/test_families.py.
"""
from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable

from torch import nn

from ..base.type_names import is_forward_of, path_of
from .layer_numbers import (
    bert_numbers, bert_refuses, gemma_numbers, gemma_refuses, gpt2_numbers, gpt2_refuses, llama_numbers, llama_refuses,
    olmo2_numbers, phi3_numbers, phi3_refuses, vit_numbers, vit_refuses,
)  # fmt: skip

TRANSFORMERS = "5.12"  # the earliest version with these layers


@dataclasses.dataclass(frozen=True)
class Family:
    """How a block of the library reads a class of layers."""

    layer: str  # module.Class
    kind: str  # of block: gated, pre_norm, post_norm
    products: dict[str, tuple[str, ...]]  # name in a block: submodules whose rows follow each other
    norms: dict[str, str]  # name in a block: submodule
    numbers: Callable[[nn.Module], dict[str, float]]
    refuses: Callable[[nn.Module], str | None] = lambda layer: None  # why a block does not compute what the layer does
    attention: str = "self_attn"  # the submodule with the `config` of attention
    causal: bool = True
    product_class: str = "torch.nn.modules.linear.Linear"

    def __reduce__(self):
        return _family_named, (self.layer,)  # a copy is the row of the table


_NORMS = {"attn.norm": "input_layernorm", "mlp.norm": "post_attention_layernorm"}
_POST_NORMS = {"attn.post_norm": "post_attention_layernorm", "mlp.post_norm": "post_feedforward_layernorm"}
_GEMMA_NORMS = _NORMS | {"mlp.norm": "pre_feedforward_layernorm"} | _POST_NORMS
_HEAD_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}


def _llama(name: str, module: str, norms: dict[str, str] = _NORMS, numbers=llama_numbers, refuses=llama_refuses) -> Family:
    return Family(
        layer=f"transformers.models.{module}.modeling_{module}.{name}DecoderLayer",
        kind="gated",
        products={
            "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attn.out": ("self_attn.o_proj",),
            "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "mlp.down": ("mlp.down_proj",),
        },
        norms=norms,
        numbers=numbers,
        refuses=refuses,
    )


def _bert(name: str, module: str) -> Family:
    return Family(
        layer=f"transformers.models.{module}.modeling_{module}.{name}Layer",
        kind="post_norm",
        products={
            "attn.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attn.out": ("attention.output.dense",),
            "mlp.up": ("intermediate.dense",),
            "mlp.down": ("output.dense",),
        },
        norms={"mlp.norm": "attention.output.LayerNorm", "final.norm": "output.LayerNorm"},
        numbers=bert_numbers,
        refuses=bert_refuses,
        attention="attention.self",
        causal=False,
    )


FAMILIES = (
    _llama("Llama", "llama"),
    _llama("Mistral", "mistral"),
    _llama("Qwen2", "qwen2"),
    _llama("Qwen3", "qwen3", _NORMS | _HEAD_NORMS),
    _llama("SmolLM3", "smollm3"),
    _llama("Granite", "granite"),
    _llama("Olmo2", "olmo2", _POST_NORMS | _HEAD_NORMS, olmo2_numbers),
    _llama("Gemma2", "gemma2", _GEMMA_NORMS, gemma_numbers, gemma_refuses),
    _llama("Gemma3", "gemma3", _GEMMA_NORMS | _HEAD_NORMS, gemma_numbers, gemma_refuses),
    Family(
        layer="transformers.models.phi3.modeling_phi3.Phi3DecoderLayer",
        kind="gated",
        products={
            "attn.qkv": ("self_attn.qkv_proj",),
            "attn.out": ("self_attn.o_proj",),
            "mlp.gate_up": ("mlp.gate_up_proj",),
            "mlp.down": ("mlp.down_proj",),
        },
        norms=_NORMS,
        numbers=phi3_numbers,
        refuses=phi3_refuses,
    ),
    _bert("Bert", "bert"),
    _bert("Roberta", "roberta"),
    Family(
        layer="transformers.models.gpt2.modeling_gpt2.GPT2Block",
        kind="pre_norm",
        products={
            "attn.qkv": ("attn.c_attn",),
            "attn.out": ("attn.c_proj",),
            "mlp.up": ("mlp.c_fc",),
            "mlp.down": ("mlp.c_proj",),
        },
        norms={"attn.norm": "ln_1", "mlp.norm": "ln_2"},
        numbers=gpt2_numbers,
        refuses=gpt2_refuses,
        attention="attn",
        product_class="transformers.pytorch_utils.Conv1D",
    ),
    Family(
        layer="transformers.models.vit.modeling_vit.ViTLayer",
        kind="pre_norm",
        products={
            "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            "attn.out": ("attention.o_proj",),
            "mlp.up": ("mlp.fc1",),
            "mlp.down": ("mlp.fc2",),
        },
        norms={"attn.norm": "layernorm_before", "mlp.norm": "layernorm_after"},
        numbers=vit_numbers,
        refuses=vit_refuses,
        attention="attention",
        causal=False,
    ),
)

_BY_LAYER = {family.layer: family for family in FAMILIES}


def _family_named(layer: str) -> Family:
    return _BY_LAYER[layer]


def family_of(module: nn.Module) -> tuple[Family | None, str | None]:
    """The family of a layer, and why it cannot be served where it looks like one of it.

    A class that is derived without a forward of its own, as by fully_shard, is of the family.
    """
    for cls in type(module).__mro__:
        family = _BY_LAYER.get(path_of(cls))
        if family is None:
            continue
        if not is_forward_of(type(module), family.layer):
            return family, f"{path_of(type(module))} has a forward of its own"
        return family, None
    return None, None


def check_version() -> None:
    """Throws ValueError under an older transformers, whose layers differ."""
    version = getattr(sys.modules.get("transformers"), "__version__", TRANSFORMERS)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < tuple(map(int, TRANSFORMERS.split("."))):
        raise ValueError(f"compact.apply: layers of transformers {TRANSFORMERS} and later are served, here is {version}")
