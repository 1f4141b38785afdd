# SPDX-License-Identifier: Apache-2.0
"""A layer that is served: what is known of it, and its forward pass, or when its own runs."""
from __future__ import annotations

import collections
import inspect
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn.modules.module import _has_any_global_hook

from . import _adapters, _carriers, _fit, _given
from ._families import Family
from ._layer_numbers import submodule
from ._library import can_compute_on, classes, kind_of
from ._names import path_of
from ._stand_in import STATE, TYPES, Notes, is_forward_of, under_transform

_WEIGHTS = (nn.Parameter, torch.Tensor, _carriers.Carrier, _carriers.Projected)
INSTEAD = 'policy "recompute" holds the inputs of layers alone, as checkpointing does'


def _captures_attention() -> bool:
    """Whether transformers records attention weights in this pass, which a block never makes."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return False
    wanted = _active_collector.get()
    return wanted is not None and any("attention" in key for key in wanted)


class LayerState:
    """What is known of a layer that is served."""

    def __init__(self, layer: nn.Module, family: Family, number: int, policy: str, seed: int, notes: Notes):
        self.family, self.name, self.policy, self.seed, self.notes = family, f"layers.{number}", policy, seed, notes
        self.served: bool | None = None  # in the last pass with gradients
        self.first = number == 0
        self.projected: dict[str, Any] = {}  # by product: what its gradients are projected with
        # By position, after the module and the hidden states.
        self.arguments = tuple(inspect.signature(inspect.unwrap(type(layer).forward)).parameters)[2:]
        self.attention = submodule(layer, family.attention)
        self.own = None  # the forward of its class, once it is known to be the family's
        self.calls = 0
        self.own_forward: collections.Counter[str] = collections.Counter()
        self._fit(layer)
        self.projected |= {product: self.block.projected(product) for product in self.block.projections()}

    def _fit(self, layer: nn.Module) -> None:
        """Takes the modules that are in the layer now; it can be served."""
        self.problem: str | None = None  # why it cannot be, as its modules are
        self.adapted = []  # products with adapters around them: module, name, which of its matrices
        for product, paths in self.family.products.items():
            for part, path in enumerate(paths):
                if _adapters.is_lora(submodule(layer, path)):
                    self.adapted.append((submodule(layer, path), product, part))
        self._make_block(layer, self.family.numbers(layer), self._adapters())
        self.watched = self._watch(layer)

    def _adapters(self) -> list[tuple[_adapters.Row, nn.Module, nn.Module]]:
        return [adapter for adapted in self.adapted for adapter in _adapters.of(*adapted)]

    def _make_block(self, layer: nn.Module, numbers: dict[str, float], adapters: list[tuple[_adapters.Row, nn.Module, nn.Module]]) -> None:
        rows = [row for row, _, _ in adapters]
        self.block = classes.Block(
            self.family.kind, self.name, self.policy, {k: float(v) for k, v in numbers.items()}, rows, self.seed
        )
        self.numbers, self.adapters = numbers, adapters
        self.mask = 0  # bytes of the mask that the block's last pass had, where that says padding
        self._set_projected()
        names = list(self.block.weights())
        sources = [self._source(layer, full) for full in names]
        self.sources = [(module, module._parameters, name) for module, name in sources]
        self.norms = [i for i, full in enumerate(names) if full.rsplit(".", 1)[0] in self.family.norms]
        bases = [(i, full.removesuffix("." + _carriers.NAME)) for i, full in enumerate(names)]
        self.carriers = [(i, names.index(base + ".weight")) for i, base in bases if base != names[i]]  # places: carrier, weight

    def _set_projected(self) -> None:
        for product, projected in self.projected.items():
            self.block.set_projected(product, projected)

    def projected_modules(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """The submodules whose weights have projected gradients, with the products that they are of."""
        found = []
        for product in self.projected:
            found += [(_adapters.plain(submodule(layer, path)), product) for path in self.family.products[product]]
        return found

    def weights(self) -> list[Any]:
        """What the block is given: parameters, or what stands in their place."""
        try:
            return [parameters[name] for _, parameters, name in self.sources]
        except KeyError:  # FullyShardedDataParallel takes parameters out, and sets tensors in their place
            return [parameters.get(name, module.__dict__.get(name)) for module, parameters, name in self.sources]

    def _source(self, layer: nn.Module, full: str) -> tuple[nn.Module, str]:
        base, kind = full.rsplit(".", 1)
        if base in self.family.norms:
            return submodule(layer, self.family.norms[base]), kind
        if ".adapter." in base:
            product, number = base.split(".adapter.")
            of_product = [pair for row, *pair in self.adapters if row[0] == product]
            return of_product[int(number)]["AB".index(kind)], "weight"
        part = "0"
        if base not in self.family.products:
            base, part = base.rsplit(".", 1)
        return _adapters.plain(submodule(layer, self.family.products[base][int(part)])), kind

    def _watch(self, layer: nn.Module) -> list[tuple[dict, str, nn.Module, type, Any]]:
        """Every module inside: a hook on one, or another one in its place, would not be seen."""
        found = []
        for parent in layer.modules():
            for key, child in parent._modules.items():
                if child is not None:
                    found.append((parent._modules, key, child, type(child), type(child).forward))
        return found

    def __getstate__(self):
        # Functions of classes cannot be pickled where decorators made them: they are found again.
        watched = [row[:3] for row in self.watched]
        return self.__dict__ | {"own_forward": collections.Counter(), "calls": 0, "mask": 0, "watched": watched, "own": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.watched = [(*row, type(row[2]), type(row[2]).forward) for row in self.watched]
        self._set_projected()

    def why_not(self, layer: nn.Module) -> str | None:
        """Why the layer's own forward must run now, as far as its modules tell; takes what was changed in them
        since, as its dropout or adapters, where a block can have it."""
        own = type(layer).forward
        if own is not self.own:
            if not is_forward_of(type(layer), self.family.layer):
                return f"the forward of {path_of(type(layer))} was replaced"
            self.own = own
        training = layer.training
        for modules, key, module, cls, function in self.watched:
            if modules.get(key) is not module or type(module) is not cls:
                return self._changed(layer, f"{key} was replaced by {path_of(type(modules.get(key)))}")
            if cls.forward is not function:
                return f"the forward of {path_of(type(module))} was replaced"
            inside = module.__dict__
            if inside["training"] != training:
                return f"{key} is in another mode than the layer (train, eval)"
            if inside["_forward_hooks"] and not self._only_recorders(inside["_forward_hooks"]):
                return f"{key} has a hook"
            if inside["_forward_pre_hooks"] or inside["_backward_hooks"] or inside["_backward_pre_hooks"]:
                return f"{key} has a hook"
            if "forward" in inside:
                return f"the forward of {key} was replaced"
        if self.problem or _has_any_global_hook():
            return self.problem or "hooks for all modules are in force"
        for module, product, _ in self.adapted:
            problem = _adapters.why_not(module)
            if problem:
                return f"{product}: {problem}"
        numbers, adapters = self.family.numbers(layer), self._adapters()
        if adapters != self.adapters:
            return self._changed(layer, "its adapters were changed")
        if numbers != self.numbers:
            self._make_block(layer, numbers, adapters)
        return self.family.refuses(layer)

    def _changed(self, layer: nn.Module, reason: str) -> str | None:
        # Adapters were added, merged or taken away.
        if self.projected:
            return reason
        self.problem = _fit.other_modules(layer, self.family)
        if self.problem is None:
            self._fit(layer)
        else:
            self.problem, self.watched = f"{reason}: {self.problem}", self._watch(layer)
        return self.why_not(layer)

    def why_not_of(self, x: Any, weights: list[Any]) -> str | None:
        """Why it must, as far as the tensors tell that a block would be given."""
        if type(x) is not torch.Tensor:
            return f"it is given a {type(x).__name__}"
        if under_transform():
            return "a transform of torch.func or forward-mode differentiation runs"
        if torch._C._current_graph_task_id() != -1:
            return "a backward pass runs, as of checkpointing"
        for weight in weights:
            if type(weight) not in _WEIGHTS:
                return f"it has weights of type {type(weight).__name__}"
        kind = kind_of(x)
        if not can_compute_on(kind):
            return f"the package was built without kernels for {kind}"
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        if dtype not in TYPES or x.dtype not in TYPES:
            return f"it computes in {dtype if dtype not in TYPES else x.dtype}"
        if weights[0].device != x.device:
            return "its weights lie on another device than its input"
        for norm in self.norms:
            if weights[norm].dtype not in (torch.float32, x.dtype):
                return f"its norms are {weights[norm].dtype}, what they read is {x.dtype}"
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


def _check_projected(state: LayerState, weights: list[Any], reason: str | None) -> None:
    if reason is not None and any(weights[i].requires_grad for i, _ in state.carriers):
        raise RuntimeError(
            f"compact: {state.name} has projected gradients, which its own forward has not, and it must run that: {reason}. "
            "Without gradients (torch.no_grad) it may; a policy without `grad` lines, as exact, lets it always"
        )
    with torch._C.DisableTorchFunctionSubclass():  # a use by the layer
        for i, j in state.carriers:
            _carriers.check(weights[i], weights[j], state.name)


def forward(layer: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of a layer that is served: one node of the graph, or the layer's own code."""
    state: LayerState = layer.__dict__[STATE]
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if state.first:
        _given.begin_pass()
    told, reason = _given.arguments(state.arguments, args, kwargs)
    reason = reason or state.why_not(layer)
    weights = state.weights()
    reason = reason or state.why_not_of(hidden_states, weights)
    lengths, cos, sin = None, None, None
    if reason is None:
        window = state.numbers.get("window") or None
        lengths, reason = _given.attended(state.attention, state.family, window, told, hidden_states)
    if reason is None and "position_embeddings" in told:
        tables = _given.tables(told, hidden_states)
        if isinstance(tables, str):
            reason = tables
        else:
            cos, sin = tables
    if state.projected:
        _check_projected(state, weights, reason)
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
    state.mask = 0
    with torch._C.DisableTorchFunctionSubclass():
        y = state.block.forward(hidden_states, weights, cos, sin, lengths, layer.training)
    if lengths is not None:
        state.mask = told["attention_mask"].untyped_storage().nbytes()
    return y
