# SPDX-License-Identifier: Apache-2.0
"""The numbers of the block that can stand in for a layer, read from its modules, and why no block can.

A function of numbers gives fields of compact/networks/block_shape.h, those that are not as they are there;
one that refuses says what the layer computes otherwise.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn import functional

from ..base.torch_functions import own_function
from ..base.torch_private import submodules_of
from ..base.type_names import origin_of, path_of
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
    if not isinstance(module, nn.Module) and module is not own_function(functional, "gelu"):
        return f"its activation is {origin_of(module)}.{name}"
    if (act := getattr(module, "__dict__", {}).get("act")) is not None and not _is_act_of(module, act):
        return f"its activation is {name} with act={act}"
    return None if name in allowed else f"its activation is {name}"


def _is_act_of(module: nn.Module, act: Any) -> bool:
    """Whether a GELUActivation or GELUTanh has the function that transformers gives it: of torch, or a method of its own."""
    settings = {"approximate": "tanh"} if type(module).__name__ in _GELU_TANH else {}
    gelu = own_function(functional, "gelu")
    if settings and isinstance(act, functools.partial):
        return act.func is gelu and not act.args and act.keywords == settings
    return act is gelu and not settings or getattr(act, "__self__", None) is module and getattr(type(module), act.__name__, None) is act.__func__


_OF_MLP, _OF_QKV = "products of its MLP", "of its queries, keys and values"
_SILU = ("SiLUActivation", "SiLU")
_GELU = ("GELUActivation", "GELU", "gelu")
_GELU_TANH = ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


def _gelu_tanh(module: Any) -> bool:
    return type(module).__name__ in _GELU_TANH or getattr(module, "approximate", "none") == "tanh"


def _eps(norm: nn.Module) -> float | None:
    return norm.__dict__.get("variance_epsilon", norm.__dict__.get("eps"))  # None: it is a tensor


def _eps_differ(norms: Iterable[nn.Module]) -> str | None:
    return "its norms differ in eps" if len(set(map(_eps, norms))) > 1 else None


def _dropout(module: Any) -> float | None:
    """The probability of a dropout; None: it is a module of another kind."""
    if isinstance(module, nn.Dropout) and type(module).forward is nn.Dropout.forward:
        return module.p
    return 0 if type(module) is nn.Identity else None


def _dropouts_differ(layer: nn.Module, *paths: str) -> str | None:
    found = {path: _dropout(submodule(layer, path)) for path in paths}
    others = [f"{path} is a {path_of(type(submodule(layer, path)))}" for path in paths if found[path] is None]
    return others[0] if others else f"its dropouts differ: {', '.join(paths)}" if len(set(found.values())) > 1 else None


def _some_biases(what: str, products: Iterable[nn.Module]) -> str | None:
    return f"some {what} have a bias and some have none" if len({has_bias(plain(product)) for product in products}) > 1 else None


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
    problem = _dropouts_differ(layer, "resid_attn_dropout", "resid_mlp_dropout")
    if problem or _dropout(layer.resid_attn_dropout) > 0:
        return problem or "it has dropout after its products (resid_pdrop)"
    problem = _some_biases(_OF_MLP, (layer.mlp.gate_up_proj, layer.mlp.down_proj))
    return problem or _eps_differ((layer.input_layernorm, layer.post_attention_layernorm)) or _activation(layer.mlp.activation_fn, _SILU)


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
    problem = _eps_differ(norms) or _some_biases(_OF_MLP, (mlp[f"{name}_proj"] for name in ("gate", "up", "down")))
    problem = problem or _some_biases(_OF_QKV, (attention[f"{name}_proj"] for name in "qkv"))
    return problem or _activation(getattr(modules["mlp"], "act_fn", None), activations)


# --- encoders: BERT, ViT


def _encoder_numbers(attention: nn.Module, query: nn.Module, up: nn.Module, norm: nn.Module, dropout: Any, activation: Any) -> dict[str, float]:
    """The numbers that both have, from the submodules that give them."""
    return {
        "hidden": plain(query).in_features,
        "intermediate": plain(up).out_features,
        "heads": attention.num_attention_heads,
        "eps": norm.eps,
        "scale": attention.scaling,
        "dropout": _dropout(dropout),
        "gelu_tanh": _gelu_tanh(activation),
        "causal": False,
        "qkv_bias": plain(query).bias is not None,
    }


def bert_numbers(layer: nn.Module) -> dict[str, float]:
    attention, up, output = layer.attention.self, layer.intermediate, layer.output
    numbers = _encoder_numbers(attention, attention.query, up.dense, output.LayerNorm, output.dropout, up.intermediate_act_fn)
    return numbers | {"head_dim": attention.attention_head_size, "attention_dropout": _dropout(attention.dropout)}


def bert_refuses(layer: nn.Module) -> str | None:
    if layer.is_decoder or layer.add_cross_attention:
        return "it is a decoder's"
    if layer.chunk_size_feed_forward:
        return "its feed-forward part runs in chunks (chunk_size_feed_forward)"
    problem = _eps_differ((layer.attention.output.LayerNorm, layer.output.LayerNorm))
    problem = problem or _dropouts_differ(layer, "attention.output.dropout", "output.dropout") or _dropouts_differ(layer, "attention.self.dropout")
    problem = problem or _some_biases(_OF_QKV, (getattr(layer.attention.self, name) for name in ("query", "key", "value")))
    return problem or _activation(layer.intermediate.intermediate_act_fn, _GELU + _GELU_TANH)


def vit_numbers(layer: nn.Module) -> dict[str, float]:
    attention, mlp = layer.attention, layer.mlp
    numbers = _encoder_numbers(attention, attention.q_proj, mlp.fc1, layer.layernorm_before, layer.dropout, mlp.activation_fn)
    return numbers | {"head_dim": attention.head_dim, "attention_dropout": attention.attention_dropout}


def vit_refuses(layer: nn.Module) -> str | None:
    problem = _eps_differ((layer.layernorm_before, layer.layernorm_after)) or _dropouts_differ(layer, "dropout")
    problem = problem or _some_biases(_OF_QKV, (getattr(layer.attention, f"{name}_proj") for name in "qkv"))
    return problem or _activation(layer.mlp.activation_fn, _GELU + _GELU_TANH)


# --- GPT-2


def gpt2_numbers(layer: nn.Module) -> dict[str, float]:
    return {
        "hidden": layer.attn.embed_dim,
        "intermediate": getattr(plain(layer.mlp.c_fc), "nf", None) or plain(layer.mlp.c_fc).out_features,  # quantized it is a Linear
        "heads": layer.attn.num_heads,
        "head_dim": layer.attn.head_dim,
        "eps": layer.ln_1.eps,
        "scale": layer.attn.scaling,
        "attention_dropout": _dropout(layer.attn.attn_dropout),
        "dropout": _dropout(layer.mlp.dropout),
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
    problem = _eps_differ((layer.ln_1, layer.ln_2)) or _dropouts_differ(layer, "attn.resid_dropout", "mlp.dropout")
    return problem or _dropouts_differ(layer, "attn.attn_dropout") or _activation(layer.mlp.act, _GELU + _GELU_TANH)
