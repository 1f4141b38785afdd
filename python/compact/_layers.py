# SPDX-License-Identifier: Apache-2.0
"""The forward pass that stands in for a layer's own, and when it does not."""
from __future__ import annotations

import collections
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _functorch
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _has_any_global_hook

from ._library import classes
from ._families import Family, submodule
from ._masks import read_mask

log = logging.getLogger("compact")
STATE = "_compact"  # the attribute of a layer that is served
TYPES = (torch.float32, torch.bfloat16)
# Arguments that change nothing here: what they are for has been done before a layer is called.
_WITHOUT_MEANING = frozenset({"num_items_in_batch", "position_ids", "return_dict", "output_hidden_states"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _captures_attention() -> bool:
    """Whether transformers records attention weights in this pass, which a block never makes."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return False
    wanted = _active_collector.get()
    return wanted is not None and any("attention" in key for key in wanted)


def state_of(module: nn.Module) -> Any:
    """What compact knows of a module; None where that is nothing."""
    return module.__dict__.get(STATE)


class LayerState:
    """What is known of a layer that is served."""

    def __init__(self, layer: nn.Module, family: Family, name: str, policy: str):
        self.family, self.name = family, name
        self.block = classes.Block(family.kind, name, policy, {k: float(v) for k, v in family.numbers(layer).items()})
        self.sources = []  # dictionaries of parameters, and the name in them, in the block's order
        for full in self.block.weights():
            base, kind = full.rsplit(".", 1)
            self.sources.append((self._module(layer, base)._parameters, kind))
        self.watched = self._watch(layer)
        self.attention = submodule(layer, family.attention)
        self.window = family.window(layer)
        self.calls = 0
        self.own_forward: collections.Counter[str] = collections.Counter()

    def _module(self, layer: nn.Module, base: str) -> nn.Module:
        if base in self.family.norms:
            return submodule(layer, self.family.norms[base])
        if base in self.family.products:
            return submodule(layer, self.family.products[base][0])
        base, part = base.rsplit(".", 1)
        return submodule(layer, self.family.products[base][int(part)])

    def _watch(self, layer: nn.Module) -> list[tuple[dict, str, nn.Module]]:
        """Every module inside: a hook on one, or another one in its place, would not be seen."""
        found = []
        for parent in layer.modules():
            found.extend((parent._modules, key, child) for key, child in parent._modules.items() if child is not None)
        return found

    def why_not(self, layer: nn.Module, x: Any, weights: list[Any]) -> str | None:
        """Why the layer's own forward must run now, as far as its modules and tensors tell."""
        for modules, key, module in self.watched:
            if modules.get(key) is not module:
                return f"{key} was replaced by {_path(modules.get(key))}"
            inside = module.__dict__
            if inside["_forward_hooks"] and not self._only_recorders(inside["_forward_hooks"]):
                return f"{key} has a hook"
            if inside["_forward_pre_hooks"] or inside["_backward_hooks"] or inside["_backward_pre_hooks"]:
                return f"{key} has a hook"
            if "forward" in inside:
                return f"the forward of {key} was replaced"
        if _has_any_global_hook():
            return "hooks for all modules are in force"
        if type(x) is not torch.Tensor:
            return f"it is given a {type(x).__name__}"
        if _functorch.peek_interpreter_stack() is not None:
            return "a transform of torch.func runs"
        for weight in weights:
            if type(weight) is not nn.Parameter and type(weight) is not torch.Tensor:
                return f"it has weights of type {type(weight).__name__}"
        # Any weight can tell: products are of one type, or cast to one.
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if dtype not in TYPES or x.dtype not in TYPES:
            return f"it computes in {dtype if dtype not in TYPES else x.dtype}"
        if weights[0].device != x.device:
            return "its weights lie on another device than its input"
        return self._other_hooks()

    @staticmethod
    def _only_recorders(hooks: dict) -> bool:
        # transformers leaves its recorders where they once were; they ask for nothing in most passes.
        recorders = all(hook.__module__ == "transformers.utils.output_capturing" for hook in hooks.values())
        return recorders and not _captures_attention()

    @staticmethod
    def _other_hooks() -> str | None:
        hooks = _top_saved_tensors_default_hooks(True)
        if hooks is None or getattr(hooks[0], "__module__", "").startswith("compact."):
            return None
        return "hooks for saved tensors are in force around it, as of checkpointing or offloading"

    def __getstate__(self):
        return self.__dict__ | {"own_forward": collections.Counter(), "calls": 0}


def _path(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _arguments(state: LayerState, args: tuple, kwargs: dict) -> tuple[dict, str | None]:
    """What a layer was told beside its input, and why a block cannot do with it."""
    told = dict(zip(state.family.arguments, args))
    if len(args) > len(state.family.arguments):
        return told, f"it was given {len(args) + 1} arguments by position"
    told.update(kwargs)
    told = {key: value for key, value in told.items() if value is not None and value is not False}
    if told.get("past_key_values") is not None:
        return told, "a cache of keys and values is passed (use_cache)"
    told.pop("use_cache", None)
    known = _WITHOUT_MEANING | {"attention_mask", "position_embeddings"}
    unknown = [key for key in told if key not in known]
    return told, f"it was given {', '.join(sorted(unknown))}" if unknown else None


def _attention(state: LayerState, told: dict, length: int) -> tuple[torch.Tensor | None, str | None]:
    """Lengths of padded sequences, and why a block's attention is another one than the layer's."""
    implementation = state.attention.config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        return None, f"its attention is {implementation}"
    mask, family = told.get("attention_mask"), state.family
    if mask is None:
        # Without a mask `eager` attends to all tokens.
        return None, "its attention is eager and has no mask" if family.causal and implementation == "eager" else None
    if not isinstance(mask, torch.Tensor):
        return None, f"its mask is a {type(mask).__name__}"
    return read_mask(mask, length, family.causal, state.window)


def _rope(told: dict, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    """Cosines and sines as the library takes them; the tensors of a pass are made once."""
    given = told.get("position_embeddings")
    if given is None:
        return "it was given no position embeddings"
    cos, sin = given
    if cos.dim() != 3 or cos.size(1) != x.size(1) or cos.size(0) not in (1, x.size(0)):
        return f"its position embeddings are {tuple(cos.shape)}"
    return _tables(cos, sin)


def _tables(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    known = cos.__dict__.get(STATE)  # layers of one pass are given the same tensors
    if known is not None and known[2] is sin:
        return known[0], known[1]
    half = cos.size(-1) // 2  # both halves of a row are alike
    tables = [t.detach()[..., :half].reshape(-1, half).to(torch.float32).contiguous() for t in (cos, sin)]
    cos.__dict__[STATE] = (*tables, sin)
    return tables[0], tables[1]


class Forward:
    """A forward pass that stands in a module for that of its class. Copies are of the copied module."""

    def __init__(self, function: Callable, module: nn.Module):
        self.function, self.module = function, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # its nodes are none of Python's, and stay out of a compiled graph
            return _outside_of_graphs(self.function, self.module, *args, **kwargs)
        return self.function(self.module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        # Trainer takes from it which columns of a data set a model reads.
        return inspect.signature(type(self.module).forward.__get__(self.module))


@torch.compiler.disable
def _outside_of_graphs(function: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return function(module, *args, **kwargs)


def forward(layer: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of a layer that is served: one node of the graph, or the layer's own code."""
    state: LayerState = layer.__dict__[STATE]
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    weights = [parameters[name] for parameters, name in state.sources]
    told, reason = _arguments(state, args, kwargs)
    reason = reason or state.why_not(layer, hidden_states, weights)
    lengths, cos, sin = None, None, None
    if reason is None:
        lengths, reason = _attention(state, told, hidden_states.size(1))
    if reason is None and "position_embeddings" in told:
        tables = _rope(told, hidden_states)
        if isinstance(tables, str):
            reason = tables
        else:
            cos, sin = tables
    if reason is not None:
        if not state.own_forward[reason]:
            say_once(f"{state.name} keeps its own forward: {reason}", reason)
        state.own_forward[reason] += 1
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if getattr(layer, "gradient_checkpointing", False) and layer.training:
        say_once(
            "gradient_checkpointing is on, and has no effect on layers that compact serves: "
            "compact.apply(model, policy=\"recompute\") holds a layer's input alone",
            "checkpointing",
        )
    state.calls += 1
    return state.block.forward(hidden_states, weights, cos, sin, lengths, layer.training)


_said: set[str] = set()


def say_once(text: str, key: str) -> None:
    if key not in _said:
        _said.add(key)
        log.warning(text)
