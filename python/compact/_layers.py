# SPDX-License-Identifier: Apache-2.0
"""The forward pass that stands in for a layer's own, and when it does not."""
from __future__ import annotations

import collections
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _functorch
from torch.autograd import forward_ad
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _has_any_global_hook

from ._library import DEVICES, classes
from ._families import Family, is_forward_of, submodule
from ._masks import read_mask

try:
    from transformers import modeling_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError:  # then no model has a layer of a family
    modeling_utils = sdpa_attention_forward = None

log = logging.getLogger("compact")
STATE = "_compact"  # the attribute of a layer that is served
REPLICATE = "_replicate_for_data_parallel"
TYPES = (torch.float32, torch.bfloat16)
# Arguments that change nothing here: what they are for has been done before a layer is called.
_WITHOUT_MEANING = frozenset({"num_items_in_batch", "position_ids", "return_dict", "output_hidden_states"})
_SWITCHES = frozenset({"use_cache", "output_attentions", "output_hidden_states", "return_dict"})  # False is none
# Where the code of modules inside a layer comes from; another one computes something else.
_KNOWN_CODE = ("torch.nn.modules.", "transformers.activations", "transformers.pytorch_utils")
INSTEAD = 'policy "recompute" holds the inputs of layers alone, as checkpointing does'
CACHES = ("past_key_values", "cache")  # what versions of transformers call it


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


class Notes:
    """What is said once of a model."""

    def __init__(self):
        self._said: set[str] = set()

    def say(self, text: str, key: str = "") -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            log.warning(f"compact: {text}")


class _Pass(threading.local):
    """Which pass of a model runs on this thread: what its layers share is read once in each."""

    number = 0


_pass = _Pass()


class LayerState:
    """What is known of a layer that is served."""

    def __init__(self, layer: nn.Module, family: Family, number: int, policy: str, notes: Notes):
        self.family, self.name, self.policy, self.notes = family, f"layers.{number}", policy, notes
        self.served: bool | None = None  # in the last pass with gradients
        self.first = number == 0
        self._make_block(family.numbers(layer))
        # By position, behind the module and the hidden states.
        self.arguments = tuple(inspect.signature(inspect.unwrap(type(layer).forward)).parameters)[2:]
        self.sources = []  # dictionaries of parameters, and the name in them, in the block's order
        for full in self.block.weights():
            base, kind = full.rsplit(".", 1)
            self.sources.append((self._module(layer, base)._parameters, kind))
        self.norms = [i for i, full in enumerate(self.block.weights()) if full.rsplit(".", 1)[0] in family.norms]
        self.watched = self._watch(layer)
        self.own = None  # the forward of its class, once it is known to be the family's
        self.attention = submodule(layer, family.attention)
        self.calls = 0
        self.own_forward: collections.Counter[str] = collections.Counter()

    def _make_block(self, numbers: dict[str, float]) -> None:
        self.numbers = numbers
        self.block = classes.Block(self.family.kind, self.name, self.policy, {k: float(v) for k, v in numbers.items()})

    def _module(self, layer: nn.Module, base: str) -> nn.Module:
        if base in self.family.norms:
            return submodule(layer, self.family.norms[base])
        if base in self.family.products:
            return submodule(layer, self.family.products[base][0])
        base, part = base.rsplit(".", 1)
        return submodule(layer, self.family.products[base][int(part)])

    def _watch(self, layer: nn.Module) -> list[tuple[dict, str, nn.Module, type, Any]]:
        """Every module inside: a hook on one, or another one in its place, would not be seen."""
        found = []
        for parent in layer.modules():
            for key, child in parent._modules.items():
                if child is not None:
                    found.append((parent._modules, key, child, type(child), type(child).forward))
        return found

    def __getstate__(self):
        # Functions of classes cannot be pickled where decorators made them: they are found anew.
        watched = [row[:3] for row in self.watched]
        return self.__dict__ | {"own_forward": collections.Counter(), "calls": 0, "watched": watched, "own": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.watched = [(*row, type(row[2]), type(row[2]).forward) for row in self.watched]

    def why_not(self, layer: nn.Module, x: Any, weights: list[Any]) -> str | None:
        """Why the layer's own forward must run now, as far as its modules and tensors tell."""
        own = type(layer).forward
        if own is not self.own:
            if not is_forward_of(type(layer), self.family.layer):
                return f"the forward of {_path(layer)} was replaced"
            self.own = own
        training = layer.training
        for modules, key, module, cls, function in self.watched:
            if modules.get(key) is not module or type(module) is not cls:
                return f"{key} was replaced by {_path(modules.get(key))}"
            if cls.forward is not function:
                return f"the forward of {_path(module)} was replaced"
            inside = module.__dict__
            if inside["training"] != training:
                return f"{key} is in another mode than the layer (train, eval)"
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
        if under_transform():
            return "a transform of torch.func or forward-mode differentiation runs"
        if torch._C._current_graph_task_id() != -1:
            return "a backward pass runs, as of checkpointing"
        for weight in weights:
            if type(weight) is not nn.Parameter and type(weight) is not torch.Tensor:
                return f"it has weights of type {type(weight).__name__}"
        kind = x.device.type
        if kind not in DEVICES:
            return f"the package was built without kernels for {kind}"
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if dtype not in TYPES or x.dtype not in TYPES:
            return f"it computes in {dtype if dtype not in TYPES else x.dtype}"
        if weights[0].device != x.device:
            return "its weights lie on another device than its input"
        for norm in self.norms:
            if weights[norm].dtype not in (torch.float32, x.dtype):
                return f"its norms are {weights[norm].dtype}, what they read is {x.dtype}"
        return self._other_hooks() or self._other_numbers(layer)

    def _other_numbers(self, layer: nn.Module) -> str | None:
        """Takes what was changed in the layer since, as its dropout; None where a block can have it."""
        numbers = self.family.numbers(layer)
        if numbers != self.numbers:
            self._make_block(numbers)
        return self.family.refuses(layer)

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


def foreign_code(layer: nn.Module) -> str | None:
    """What a module inside runs that is neither torch's nor of the layer's own file, and so unknown."""
    own = inspect.unwrap(type(layer).forward).__module__
    for name, module in layer.named_modules():
        origin = inspect.unwrap(type(module).forward).__module__
        if origin != own and not origin.startswith(_KNOWN_CODE):
            return f"{name or 'its forward'} runs code of {origin}"
    return None


def under_transform() -> bool:
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _path(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _arguments(state: LayerState, args: tuple, kwargs: dict) -> tuple[dict, str | None]:
    """What a layer was told beside its input, and why a block cannot do with it."""
    told = dict(zip(state.arguments, args))
    if len(args) > len(state.arguments):
        return told, f"it was given {len(args) + 1} arguments by position"
    told.update(kwargs)
    told = {k: v for k, v in told.items() if v is not None and not (v is False and k in _SWITCHES)}
    if any(name in told for name in CACHES):
        return told, "a cache of keys and values is passed; give use_cache=False"
    told.pop("use_cache", None)
    known = _WITHOUT_MEANING | {"attention_mask", "position_embeddings"}
    unknown = [key for key in told if key not in known]
    return told, f"it was given {', '.join(sorted(unknown))}" if unknown else None


def _attention(state: LayerState, told: dict, x: torch.Tensor) -> tuple[torch.Tensor | None, str | None]:
    """Lengths of padded sequences, and why a block's attention is another one than the layer's."""
    attention, family, length = state.attention, state.family, x.size(1)
    implementation = attention.config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        return None, f"its attention is {implementation}"
    if not _is_usual(implementation):
        return None, f"its attention {implementation} is another function than transformers' own"
    if getattr(attention, "is_causal", family.causal) != family.causal:
        return None, f"its attention has is_causal={attention.is_causal}"
    if family.causal and not getattr(attention.config, "is_causal", True):
        return None, "its configuration has is_causal=False"
    mask, window = told.get("attention_mask"), state.numbers.get("window") or None
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


def _rope(told: dict, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    """Cosines and sines as the library takes them; the tensors of a pass are made once."""
    given = told.get("position_embeddings")
    if given is None:
        return "it was given no position embeddings"
    cos, sin = given
    if cos.requires_grad or sin.requires_grad:
        return "its position embeddings have a gradient"
    if cos.dim() != 3 or cos.size(1) != x.size(1) or cos.size(0) not in (1, x.size(0)):
        return f"its position embeddings are {tuple(cos.shape)}"
    return _tables(cos, sin)


def _tables(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    known = cos.__dict__.get(STATE)  # layers of one pass are given the same tensors
    key = (_pass.number, cos._version, sin._version)
    if known is not None and known[2] is sin and known[3] == key:
        return known[0], known[1]
    half = cos.size(-1) // 2  # both halves of a row are alike
    tables = [t.detach()[..., :half].reshape(-1, half).to(torch.float32).contiguous() for t in (cos, sin)]
    cos.__dict__[STATE] = (*tables, sin, key)
    return tables[0], tables[1]


class Forward:
    """A forward pass that stands in a module for that of its class. Copies are of the copied module."""

    def __init__(self, function: Callable, module: nn.Module):
        self.function, self._module = function, weakref.ref(module)  # a model is freed without a collection

    @property
    def module(self) -> nn.Module:
        return self._module()

    def __reduce__(self):
        return type(self), (self.function, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if STATE not in module.__dict__:  # removed, and still held by who wrapped it
            return type(module).forward(module, *args, **kwargs)
        if is_dynamo_compiling():  # its nodes are none of Python's, and stay out of a compiled graph
            return _outside_of_graphs(self.function, module, *args, **kwargs)
        return self.function(module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        # Trainer takes from it which columns of a data set a model reads.
        return inspect.signature(type(self.module).forward.__get__(self.module))


class Replicate(Forward):
    """Makes replicas for nn.DataParallel, which run the own forward of their class."""

    def __init__(self, function: Callable | None, module: nn.Module):
        super().__init__(function, module)

    def __call__(self) -> nn.Module:
        module = self._module()
        replica = type(module)._replicate_for_data_parallel(module)
        for name in (STATE, "forward", REPLICATE):
            replica.__dict__.pop(name, None)
        return replica


@torch.compiler.disable
def _outside_of_graphs(function: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return function(module, *args, **kwargs)


def forward(layer: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of a layer that is served: one node of the graph, or the layer's own code."""
    state: LayerState = layer.__dict__[STATE]
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if state.first:
        _pass.number += 1
    weights = [parameters.get(name) for parameters, name in state.sources]
    told, reason = _arguments(state, args, kwargs)
    reason = reason or state.why_not(layer, hidden_states, weights)
    lengths, cos, sin = None, None, None
    if reason is None:
        lengths, reason = _attention(state, told, hidden_states)
    if reason is None and "position_embeddings" in told:
        tables = _rope(told, hidden_states)
        if isinstance(tables, str):
            reason = tables
        else:
            cos, sin = tables
    if reason is not None:
        if not state.own_forward[reason]:
            state.notes.say(f"layers keep their own forward (the first is {state.name}): {reason}", reason)
        state.own_forward[reason] += 1
        state.served = False
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if getattr(layer, "gradient_checkpointing", False) and layer.training:
        state.notes.say(f"gradient_checkpointing is on, and has no effect on layers that compact serves: {INSTEAD}")
    state.calls += 1
    state.served = True
    return state.block.forward(hidden_states, weights, cos, sin, lengths, layer.training)
