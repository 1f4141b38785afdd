# SPDX-License-Identifier: Apache-2.0
"""What the modules of a layer say of the block that can stand in for it: its numbers, and why there is none.

A function of numbers gives what compact/python/block.cpp asks of a kind of block; one that refuses says
what the layer computes otherwise.
"""
from __future__ import annotations

from typing import Any

from torch import nn

from ._adapters import plain


def submodule(layer: nn.Module, path: str) -> nn.Module | None:
    """layer.a.b of "a.b", or None."""
    for name in path.split("."):
        layer = layer._modules.get(name) if isinstance(layer, nn.Module) else None
    return layer


def _activation(module: Any, allowed: tuple[str, ...]) -> str | None:
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", str(module))
    return None if name in allowed else f"its activation is {name}"


_GELU = ("GELUActivation", "GELU", "gelu")
_GELU_TANH = ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


def _gelu_tanh(module: Any) -> bool:
    return type(module).__name__ in _GELU_TANH or getattr(module, "approximate", "none") == "tanh"


def _dropout(layer: nn.Module, *paths: str) -> tuple[float, str | None]:
    """The probability that all of these have, and what is wrong where they differ."""
    found = {float(submodule(layer, path).p) for path in paths}
    return found.pop(), f"its dropouts differ: {', '.join(paths)}" if found else None


# --- decoders of LLaMA's kind


def _decoder_numbers(layer: nn.Module, eps: float) -> dict[str, float]:
    # Asked at every call: a module's own dictionaries are ten times as fast as its attributes.
    attention, mlp = layer._modules["self_attn"], layer._modules["mlp"]
    inner = attention._modules
    q, k, down, head_dim = plain(inner["q_proj"]), plain(inner["k_proj"]), plain(mlp._modules["down_proj"]), attention.head_dim
    return {
        "hidden": q.in_features,
        "intermediate": down.in_features,
        "heads": q.out_features // head_dim,
        "kv_heads": k.out_features // head_dim,
        "head_dim": head_dim,
        "eps": eps,
        "scale": attention.scaling,
        "attention_dropout": attention.attention_dropout,
        "qkv_parts": 3,
        "gate_up_parts": 2,
        "qkv_bias": q._parameters.get("bias") is not None,
        "out_bias": plain(inner["o_proj"])._parameters.get("bias") is not None,
        "mlp_bias": down._parameters.get("bias") is not None,
        "head_norms": "q_norm" in inner,
        "post_norms": False,
        "norms_add_one": False,
        "geglu": False,
        "residual": layer.__dict__.get("residual_multiplier", 1),  # Granite's
        "rope": attention.__dict__.get("use_rope", True),  # SmolLM3's layers differ
        "window": _window(attention) or 0,
        "softcap": 0,
        "transposed": False,
    }


def llama_numbers(layer: nn.Module) -> dict[str, float]:
    return _decoder_numbers(layer, layer._modules["input_layernorm"].variance_epsilon)


GEMMA_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def gemma_numbers(layer: nn.Module) -> dict[str, float]:
    numbers = _decoder_numbers(layer, layer._modules["input_layernorm"].eps)
    softcap = layer._modules["self_attn"].attn_logit_softcapping or 0
    return numbers | {"post_norms": True, "norms_add_one": True, "geglu": True, "softcap": softcap}


def gemma_refuses(layer: nn.Module) -> str | None:
    attention, mlp = layer._modules["self_attn"]._modules, layer._modules["mlp"]._modules
    norms = [layer._modules[name] for name in GEMMA_NORMS]
    norms += [attention[name] for name in ("q_norm", "k_norm") if name in attention]
    if len({norm.eps for norm in norms}) > 1:
        return "its norms differ in eps"
    return _some_biases(attention, mlp) or _activation(mlp["act_fn"], _GELU_TANH)


def phi3_numbers(layer: nn.Module) -> dict[str, float]:
    attention, mlp = layer._modules["self_attn"], layer._modules["mlp"]
    inner, config = attention._modules, attention.config
    down, head_dim = plain(mlp._modules["down_proj"]), attention.head_dim
    qkv = plain(inner["qkv_proj"])
    return {
        "hidden": qkv.in_features,
        "intermediate": down.in_features,
        "heads": config.num_attention_heads,
        "kv_heads": attention.num_key_value_heads,
        "head_dim": head_dim,
        "eps": layer._modules["input_layernorm"].variance_epsilon,
        "scale": attention.scaling,
        "attention_dropout": attention.attention_dropout,
        "qkv_parts": 1,
        "gate_up_parts": 1,
        "qkv_bias": qkv._parameters.get("bias") is not None,
        "out_bias": plain(inner["o_proj"])._parameters.get("bias") is not None,
        "mlp_bias": down._parameters.get("bias") is not None,
        "head_norms": False,
        "post_norms": False,
        "norms_add_one": False,
        "geglu": False,
        "residual": 1,
        "rope": True,
        "window": getattr(config, "sliding_window", None) or 0,
        "softcap": 0,
        "transposed": False,
    }


def phi3_refuses(layer: nn.Module) -> str | None:
    if layer.input_layernorm.variance_epsilon != layer.post_attention_layernorm.variance_epsilon:
        return "its norms differ in eps"
    if layer.resid_attn_dropout.p > 0 or layer.resid_mlp_dropout.p > 0:
        return "it has dropout behind its products (resid_pdrop)"
    if (plain(layer.mlp.gate_up_proj).bias is None) != (plain(layer.mlp.down_proj).bias is None):
        return "some products of its MLP have a bias and some have none"
    return _activation(layer.mlp.activation_fn, ("SiLUActivation", "SiLU"))


def _window(attention: nn.Module) -> int | None:
    if "sliding_window" in attention.__dict__:
        return attention.sliding_window
    # Mistral's attention asks its configuration, which LLaMA's does not.
    if type(attention).__module__.endswith("mistral.modeling_mistral"):
        return getattr(attention.config, "sliding_window", None)
    return None


def llama_refuses(layer: nn.Module) -> str | None:
    attention, mlp = layer._modules["self_attn"]._modules, layer._modules["mlp"]._modules
    norms = [layer._modules["input_layernorm"], layer._modules["post_attention_layernorm"]]
    norms += [attention[name] for name in ("q_norm", "k_norm") if name in attention]
    if len({norm.variance_epsilon for norm in norms}) > 1:
        return "its norms differ in eps"
    return _some_biases(attention, mlp) or _activation(mlp["act_fn"], ("SiLUActivation", "SiLU"))


def _some_biases(attention: dict, mlp: dict) -> str | None:
    if len({plain(mlp[name])._parameters.get("bias") is None for name in ("gate_proj", "up_proj", "down_proj")}) > 1:
        return "some products of its MLP have a bias and some have none"
    if len({plain(attention[name])._parameters.get("bias") is None for name in ("q_proj", "k_proj", "v_proj")}) > 1:
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
        "qkv_parts": 3,
        "qkv_bias": query.bias is not None,
        "transposed": False,
    }


def bert_refuses(layer: nn.Module) -> str | None:
    if layer.is_decoder or layer.add_cross_attention:
        return "it is a decoder's"
    if layer.chunk_size_feed_forward:
        return "its feed-forward part runs in chunks (chunk_size_feed_forward)"
    norms = layer.attention.output.LayerNorm, layer.output.LayerNorm
    if norms[0].eps != norms[1].eps:
        return "its two norms differ in eps"
    problem = _dropout(layer, "attention.output.dropout", "output.dropout")[1]
    return problem or _activation(layer.intermediate.intermediate_act_fn, _GELU + _GELU_TANH)


# --- blocks that norm what they read: GPT-2, ViT


def gpt2_numbers(layer: nn.Module) -> dict[str, float]:
    return {
        "hidden": layer.attn.embed_dim,
        "intermediate": plain(layer.mlp.c_fc).nf,
        "heads": layer.attn.num_heads,
        "head_dim": layer.attn.head_dim,
        "eps": layer.ln_1.eps,
        "scale": layer.attn.scaling,
        "attention_dropout": layer.attn.attn_dropout.p,
        "dropout": layer.mlp.dropout.p,
        "gelu_tanh": _gelu_tanh(layer.mlp.act),
        "causal": True,
        "qkv_parts": 1,
        "qkv_bias": True,
        "transposed": True,  # Conv1D has [in, out]
    }


def gpt2_refuses(layer: nn.Module) -> str | None:
    if hasattr(layer, "crossattention"):
        return "it has cross-attention"
    if layer.attn.reorder_and_upcast_attn:
        return "its attention is reordered (reorder_and_upcast_attn)"
    if layer.ln_1.eps != layer.ln_2.eps:
        return "its two norms differ in eps"
    problem = _dropout(layer, "attn.resid_dropout", "mlp.dropout")[1]
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
        "qkv_parts": 3,
        "qkv_bias": query.bias is not None,
        "transposed": False,
    }


def vit_refuses(layer: nn.Module) -> str | None:
    if layer.layernorm_before.eps != layer.layernorm_after.eps:
        return "its two norms differ in eps"
    return _activation(layer.mlp.activation_fn, _GELU + _GELU_TANH)
