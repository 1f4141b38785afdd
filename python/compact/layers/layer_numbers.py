# SPDX-License-Identifier: Apache-2.0
"""The numbers of the block that can stand in for a layer, read from its modules, and why no block can.

A function of numbers gives fields of compact/networks/block_shape.h, those that are not as they are there;
one that refuses says what the layer computes otherwise.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..base.torch_private import submodules_of
from .adapters import has_bias, plain


NUMBERS = frozenset({"attention_dropout", "head_dim", "residual_multiplier", "scaling", "use_rope"})  # attributes that are read


def submodule(layer: nn.Module, path: str) -> nn.Module | None:
    """layer.a.b of "a.b", or None."""
    for name in path.split("."):
        layer = submodules_of(layer).get(name) if isinstance(layer, nn.Module) else None
    return layer


def _activation(module: Any, allowed: tuple[str, ...]) -> str | None:
    # eligibility.py checks the code of modules; but any function may be called gelu.
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", str(module))
    origin = getattr(module, "__module__", None) or ""
    if not isinstance(module, nn.Module) and not origin.startswith(("torch.", "transformers.")):
        return f"its activation is {origin}.{name}"
    return None if name in allowed else f"its activation is {name}"


_SILU = ("SiLUActivation", "SiLU")
_GELU = ("GELUActivation", "GELU", "gelu")
_GELU_TANH = ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


def _gelu_tanh(module: Any) -> bool:
    return type(module).__name__ in _GELU_TANH or getattr(module, "approximate", "none") == "tanh"


def _eps(norm: nn.Module) -> float | None:
    return norm.__dict__.get("variance_epsilon", norm.__dict__.get("eps"))  # None: it is a tensor


def _eps_differ(norms: Iterable[nn.Module]) -> str | None:
    return "its norms differ in eps" if len(set(map(_eps, norms))) > 1 else None


def _dropout(layer: nn.Module, *paths: str) -> tuple[float, str | None]:
    """The probability that all these dropouts have, and the reason against a block where they differ."""
    found = {float(submodule(layer, path).p) for path in paths}
    return found.pop(), f"its dropouts differ: {', '.join(paths)}" if found else None


# --- decoders of LLaMA's kind


def _decoder_numbers(layer: nn.Module, first: str) -> dict[str, float]:
    """The numbers that all decoders have; `first` is the product that makes queries."""
    # Read in every call: a module's dictionaries are ten times as fast as its attributes.
    modules = submodules_of(layer)
    attention, mlp = modules["self_attn"], modules["mlp"]
    inner = submodules_of(attention)
    q, down = plain(inner[first]), plain(submodules_of(mlp)["down_proj"])
    return {
        "hidden": q.in_features,
        "intermediate": down.in_features,
        "head_dim": attention.head_dim,
        "eps": _eps(modules["post_attention_layernorm"]),
        "scale": attention.scaling,
        "attention_dropout": attention.attention_dropout,
        "qkv_bias": has_bias(q),
        "out_bias": has_bias(plain(inner["o_proj"])),
        "mlp_bias": has_bias(down),
        "head_norms": "q_norm" in inner,
        "residual": layer.__dict__.get("residual_multiplier", 1),  # Granite's
        "rope": attention.__dict__.get("use_rope", True),  # SmolLM3's layers differ
    }


def llama_numbers(layer: nn.Module) -> dict[str, float]:
    """The numbers of a decoder with a product for each of queries, keys and values, gate and up."""
    attention = submodules_of(layer)["self_attn"]
    inner, head_dim = submodules_of(attention), attention.head_dim
    numbers = _decoder_numbers(layer, "q_proj")
    numbers["heads"] = plain(inner["q_proj"]).out_features // head_dim
    numbers["kv_heads"] = plain(inner["k_proj"]).out_features // head_dim
    numbers["window"] = _window(attention) or 0
    return numbers


def gemma_numbers(layer: nn.Module) -> dict[str, float]:
    softcap = submodules_of(layer)["self_attn"].attn_logit_softcapping or 0
    return llama_numbers(layer) | {"post_norms": True, "norms_add_one": True, "geglu": True, "softcap": softcap}


def olmo2_numbers(layer: nn.Module) -> dict[str, float]:
    return llama_numbers(layer) | {"pre_norms": False, "post_norms": True, "whole_norms": True}


def gemma_refuses(layer: nn.Module) -> str | None:
    return llama_refuses(layer, _GELU_TANH)


def phi3_numbers(layer: nn.Module) -> dict[str, float]:
    attention = submodules_of(layer)["self_attn"]
    config = attention.config
    numbers = _decoder_numbers(layer, "qkv_proj")
    numbers["heads"], numbers["kv_heads"] = config.num_attention_heads, attention.num_key_value_heads
    numbers["qkv_parts"] = numbers["gate_up_parts"] = 1
    numbers["window"] = getattr(config, "sliding_window", None) or 0
    return numbers


def phi3_refuses(layer: nn.Module) -> str | None:
    if layer.resid_attn_dropout.p > 0 or layer.resid_mlp_dropout.p > 0:
        return "it has dropout after its products (resid_pdrop)"
    if (plain(layer.mlp.gate_up_proj).bias is None) != (plain(layer.mlp.down_proj).bias is None):
        return "some products of its MLP have a bias and some have none"
    return _eps_differ((layer.input_layernorm, layer.post_attention_layernorm)) or _activation(layer.mlp.activation_fn, _SILU)


def _window(attention: nn.Module) -> int | None:
    if "sliding_window" in attention.__dict__:
        return attention.sliding_window
    # Mistral's attention asks its configuration, which LLaMA's does not.
    if type(attention).__module__.endswith("mistral.modeling_mistral"):
        return getattr(attention.config, "sliding_window", None)
    return None


def llama_refuses(layer: nn.Module, activations: tuple[str, ...] = _SILU) -> str | None:
    modules = submodules_of(layer)
    attention, mlp = submodules_of(modules["self_attn"]), submodules_of(modules["mlp"])
    norms = [norm for inside in (modules, attention) for name, norm in inside.items() if name.endswith("norm")]
    return _eps_differ(norms) or _some_biases(attention, mlp) or _activation(mlp["act_fn"], activations)


def _some_biases(attention: dict, mlp: dict) -> str | None:
    if not has_bias(plain(mlp["gate_proj"])) == has_bias(plain(mlp["up_proj"])) == has_bias(plain(mlp["down_proj"])):
        return "some products of its MLP have a bias and some have none"
    if not has_bias(plain(attention["q_proj"])) == has_bias(plain(attention["k_proj"])) == has_bias(plain(attention["v_proj"])):
        return "some of its queries, keys and values have a bias and some have none"
    return None


# --- encoders of BERT's kind


def bert_numbers(layer: nn.Module) -> dict[str, float]:
    attention = layer.attention.self
    query = plain(attention.query)
    return {
        "hidden": query.in_features,
        "intermediate": plain(layer.intermediate.dense).out_features,
        "heads": attention.num_attention_heads,
        "head_dim": attention.attention_head_size,
        "eps": layer.output.LayerNorm.eps,
        "scale": attention.scaling,
        "attention_dropout": attention.dropout.p,
        "dropout": layer.output.dropout.p,
        "gelu_tanh": _gelu_tanh(layer.intermediate.intermediate_act_fn),
        "causal": False,
        "qkv_bias": query.bias is not None,
    }


def bert_refuses(layer: nn.Module) -> str | None:
    if layer.is_decoder or layer.add_cross_attention:
        return "it is a decoder's"
    if layer.chunk_size_feed_forward:
        return "its feed-forward part runs in chunks (chunk_size_feed_forward)"
    problem = _eps_differ((layer.attention.output.LayerNorm, layer.output.LayerNorm))
    problem = problem or _dropout(layer, "attention.output.dropout", "output.dropout")[1]
    return problem or _activation(layer.intermediate.intermediate_act_fn, _GELU + _GELU_TANH)


# --- blocks that norm what they read: GPT-2, ViT


def gpt2_numbers(layer: nn.Module) -> dict[str, float]:
    return {
        "hidden": layer.attn.embed_dim,
        "intermediate": getattr(plain(layer.mlp.c_fc), "nf", None) or plain(layer.mlp.c_fc).out_features,  # quantized it is a Linear
        "heads": layer.attn.num_heads,
        "head_dim": layer.attn.head_dim,
        "eps": layer.ln_1.eps,
        "scale": layer.attn.scaling,
        "attention_dropout": layer.attn.attn_dropout.p,
        "dropout": layer.mlp.dropout.p,
        "gelu_tanh": _gelu_tanh(layer.mlp.act),
        "qkv_parts": 1,
        "qkv_bias": True,
        "transposed": True,  # Conv1D has [in, out]
    }


def gpt2_refuses(layer: nn.Module) -> str | None:
    if hasattr(layer, "crossattention"):
        return "it has cross-attention"
    if layer.attn.reorder_and_upcast_attn:
        return "its attention is reordered (reorder_and_upcast_attn)"
    problem = _eps_differ((layer.ln_1, layer.ln_2)) or _dropout(layer, "attn.resid_dropout", "mlp.dropout")[1]
    return problem or _activation(layer.mlp.act, _GELU + _GELU_TANH)


def vit_numbers(layer: nn.Module) -> dict[str, float]:
    attention = layer.attention
    query = plain(attention.q_proj)
    return {
        "hidden": query.in_features,
        "intermediate": plain(layer.mlp.fc1).out_features,
        "heads": attention.num_attention_heads,
        "head_dim": attention.head_dim,
        "eps": layer.layernorm_before.eps,
        "scale": attention.scaling,
        "attention_dropout": attention.attention_dropout,
        "dropout": layer.dropout.p,
        "gelu_tanh": _gelu_tanh(layer.mlp.activation_fn),
        "causal": False,
        "qkv_bias": query.bias is not None,
    }


def vit_refuses(layer: nn.Module) -> str | None:
    return _eps_differ((layer.layernorm_before, layer.layernorm_after)) or _activation(layer.mlp.activation_fn, _GELU + _GELU_TANH)
