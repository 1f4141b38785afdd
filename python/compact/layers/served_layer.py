# SPDX-License-Identifier: Apache-2.0
"""The state of a layer that is served, and its forward pass: by its block, or by its own code where a block would differ."""
from __future__ import annotations

import collections
import dis
import functools
import inspect
import pickle
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from torch import nn

from ..any_network.network_state import begin_scope
from ..base.library import can_compute_on, classes, kind_of, TYPES
from ..base.log import Notes
from ..base.torch_functions import OF_LAYERS, replaced_function
from ..base.torch_private import (
    BACKWARD_HOOKS, BACKWARD_PRE_HOOKS, FORWARD_HOOKS, FORWARD_PRE_HOOKS, has_global_hooks, internal_overlap, parameters_of, running_backward_pass, submodules_of,
    top_saved_tensors_hooks, under_transform, without_torch_function,
)  # fmt: skip
from ..base.transformers_private import RECORDERS, records_attention
from ..base.type_names import code_of, function_in, functions_of, is_forward_of, methods_of, origin_of, path_of
from ..projected_weights.carriers import Carrier, check_carrier, NAME as CARRIER, Projected
from . import call_arguments
from .adapters import active_adapters, adapter_problem, is_lora, plain, Row
from .eligibility import other_modules, parameters_problem, submodules_problem
from .families import Family
from .layer_numbers import submodule
from .patched_forward import STATE
from .weight_providers import provided, provider_of

_WEIGHTS = (nn.Parameter, torch.Tensor, Carrier, Projected)
INSTEAD = 'policy "recompute" holds the inputs of layers alone, as checkpointing does'


class LayerState:
    """A layer that is served: its block, and what must not change while the block runs in its place."""

    def __init__(self, layer: nn.Module, family: Family, number: int, policy: str, seed: int, notes: Notes):
        self.family, self.name, self.policy, self.seed, self.notes = family, f"layers.{number}", policy, seed, notes
        self.served: bool | None = None  # in the last pass with gradients
        self.first = number == 0
        self.projected: dict[str, Any] = {}  # projections of gradients, by product
        # By position, after the module and the hidden states.
        self.arguments = tuple(inspect.signature(inspect.unwrap(type(layer).forward)).parameters)[2:]
        self.own = None  # the forward of its class, once it is known to be the family's
        self.calls = 0
        self.own_forward: collections.Counter[str] = collections.Counter()
        self._read_modules(layer)
        self.projected |= {product: self.block.projected(product) for product in self.block.projections()}

    def _read_modules(self, layer: nn.Module) -> None:
        """Takes note of the modules of a layer that can be served."""
        self.problem: str | None = None  # why its modules cannot be served
        self.attention = submodule(layer, self.family.attention)
        self.adapted = []  # products with adapters around them: module, name, which of its matrices
        for product, paths in self.family.products.items():
            for part, path in enumerate(paths):
                if is_lora(submodule(layer, path)):
                    self.adapted.append((submodule(layer, path), product, part))
        self._make_block(layer, self.family.numbers(layer), self._adapters())
        self.watched = self._watch(layer)
        self.others = other_modules(layer, self.family)[1:]  # without the layer itself, which has this state
        self.functions, self.methods = None, []

    def _adapters(self) -> list[tuple[Row, nn.Module, nn.Module]]:
        return [adapter for adapted in self.adapted for adapter in active_adapters(*adapted)]

    def _make_block(self, layer: nn.Module, numbers: dict[str, float], adapters: list[tuple[Row, nn.Module, nn.Module]]) -> None:
        rows = [row for row, _, _ in adapters]
        self.block = classes.Block(
            self.family.kind, self.name, self.policy, {k: float(v or 0) for k, v in numbers.items()}, rows, self.seed
        )
        self.numbers, self.adapters = numbers, adapters
        self.mask = 0  # bytes of the mask that the block's last pass had, where that says padding or ranges
        self._set_projected()
        names = list(self.block.weights())
        sources = [self._source(layer, full) for full in names]
        self.sources = [(module, parameters_of(module), name) for module, name in sources]
        self.norms = [i for i, full in enumerate(names) if full.rsplit(".", 1)[0] in self.family.norms]
        of_products = [i for i, full in enumerate(names) if i not in self.norms and ".adapter." not in full]
        self.matrices = [i for i in of_products if names[i].endswith(".weight")]
        self.biases = {i: names.index(names[i].removesuffix("bias") + "weight") for i in of_products if names[i].endswith(".bias")}
        self.parts = {i: next(product for product in self.family.products if names[i].startswith(product + ".")) for i in self.matrices}
        # Matrices in codes, by place: the module, and what gives the values.
        self.provided = {i: (sources[i][0], provider) for i in self.matrices if (provider := provider_of(sources[i][0]))}
        bases = [(i, full.removesuffix("." + CARRIER)) for i, full in enumerate(names)]
        self.carriers = [(i, names.index(base + ".weight")) for i, base in bases if base != names[i]]  # places: carrier, weight

    def _set_projected(self) -> None:
        for product, projected in self.projected.items():
            self.block.set_projected(product, projected)

    def projected_modules(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """The submodules whose weights have projected gradients, each with its product."""
        return self.modules_of(layer, self.projected)

    def modules_of(self, layer: nn.Module, products: Iterable[str]) -> list[tuple[nn.Module, str]]:
        """The submodules that have the weights of products, each with its product."""
        return [(plain(submodule(layer, path)), product) for product in products for path in self.family.products[product]]

    def weights(self) -> list[Any]:
        """The tensors that the block reads: parameters, or what FullyShardedDataParallel puts in their place."""
        try:
            return [parameters[name] for _, parameters, name in self.sources]
        except KeyError:  # FullyShardedDataParallel takes parameters out, and sets tensors in their place
            return [parameters.get(name, module.__dict__.get(name)) for module, parameters, name in self.sources]

    def given(self, weights: list[Any], dtype: torch.dtype) -> list[Any]:
        """These weights as the block takes them, in a pass that computes in this type."""
        if not self.provided:
            return weights
        types = self._types(weights, dtype, torch.is_autocast_enabled(kind_of(weights[0])))
        made = {i: provided(provider, module, types[i]) for i, (module, provider) in self.provided.items()}
        made |= {i: weights[i].to(types[j]) for i, j in self.biases.items()}
        return [made.get(i, weight) for i, weight in enumerate(weights)]

    def _types(self, weights: list[Any], dtype: torch.dtype, autocast: bool) -> dict[int, torch.dtype]:
        """In which types matrices are multiplied, by their places."""
        types = {i: dtype if autocast else weights[i].dtype for i in self.matrices}
        return types | {i: provider.dtype(module, dtype) for i, (module, provider) in self.provided.items()}

    def _provided_problem(self, weights: list[Any], dtype: torch.dtype, autocast: bool) -> str | None:
        for i, (module, provider) in self.provided.items():
            if provider_of(module) is not provider:
                return f"it has weights of type {type(weights[i]).__name__}"
            if weights[i].requires_grad:
                return "weights in codes have gradients"
            if problem := provider.problem(module):
                return problem
        types = self._types(weights, dtype, autocast)
        for i, found in types.items():
            if found not in TYPES:
                return f"its weights compute in {found}"
            if i not in self.provided and found != dtype:
                return f"its weights are {found}, what they read is {dtype}"
            if found != types[next(j for j, product in self.parts.items() if product == self.parts[i])]:
                return f"matrices of {self.parts[i]} compute in several types"
        return None

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
        return plain(submodule(layer, self.family.products[base][int(part)])), kind

    def _watch(self, layer: nn.Module) -> list[tuple[dict, str, nn.Module, type, Any]]:
        """Every submodule with its class and forward: a block would not run a hook on it, nor see a replacement."""
        found = []
        for parent in layer.modules():
            for key, child in submodules_of(parent).items():
                if child is not None:
                    found.append((submodules_of(parent), key, child, type(child), type(child).forward))
        return found

    def __getstate__(self):
        # Functions that decorators made cannot be pickled: __setstate__ reads them from the classes.
        watched = [row[:3] for row in self.watched]
        return self.__dict__ | {"own_forward": collections.Counter(), "calls": 0, "mask": 0, "watched": watched, "own": None, "functions": None, "methods": []}

    def __setstate__(self, state):
        if differ := state.keys() ^ _attributes():
            raise pickle.UnpicklingError(
                f"compact: the model was pickled by another version of the package, whose layers have another state ({', '.join(sorted(differ))}): "
                "save its state_dict(), or pickle it after compact.remove(model)"
            )
        self.__dict__.update(state)
        self.watched = [(*row, type(row[2]), type(row[2]).forward) for row in self.watched]
        self._set_projected()

    def modules_problem(self, layer: nn.Module) -> str | None:
        """Why the modules of the layer make its own forward run in this pass. Changes that a block can follow, as
        of dropout or adapters, are given to the block."""
        own = type(layer).forward
        if own is not self.own:
            if not is_forward_of(type(layer), self.family.layer):
                return f"the forward of {path_of(type(layer))} was replaced"
            self.own = own
        if self.watched and self.watched[0][0] is not submodules_of(layer):
            return "it is a shallow copy"
        training = layer.training
        for modules, key, module, cls, function in self.watched:
            if modules.get(key) is not module or type(module) is not cls:
                return self._changed(layer, f"{key} was replaced by {path_of(type(modules.get(key)))}")
            if cls.forward is not function or (cls.__call__ is not nn.Module.__call__ and not origin_of(cls.__call__).startswith("torch.nn.")):
                return f"the forward of {path_of(type(module))} was replaced"
            inside = module.__dict__
            if inside["training"] != training:
                return f"{key} is in {'train' if inside['training'] else 'eval'} mode, the layer is not: model.train() or model.eval() sets all of them"
            if inside[FORWARD_HOOKS] and not self._only_recorders(inside[FORWARD_HOOKS]):
                return f"{key} has a hook"
            if inside[FORWARD_PRE_HOOKS] or inside[BACKWARD_HOOKS] or inside[BACKWARD_PRE_HOOKS]:
                return f"{key} has a hook"
            if "forward" in inside:
                return f"the forward of {key} was replaced"
        if self.problem or has_global_hooks():
            return self.problem or "hooks for all modules are in force"
        if problem := replaced_function(OF_LAYERS):
            return problem
        for module, product, _ in self.adapted:
            problem = adapter_problem(module)
            if problem:
                return f"{product}: {problem}"
        if self.functions is None:
            forwards = [code_of(type(m).forward) for m in (layer, *(m for _, m in self.others))]
            self.functions = functions_of([*forwards, call_arguments.sdpa_attention_forward])
            # Without the layer itself, which has this state.
            self.methods = [(None if m is layer else m, *method) for m in layer.modules() for method in methods_of(type(m))]
        for names, name, function, inside in self.functions:
            # A kernel is put into the module that stands for a function, and the name stays as it is.
            if names.get(name) is not function or (isinstance(function, nn.Module) and function_in(function) is not inside):
                return f"{name} of {names['__name__']} was replaced"
        for module, name, method in self.methods:
            owner = layer if module is None else module
            if getattr(type(owner), name, None) != method or name in owner.__dict__:
                return f"{name} of {path_of(type(owner))} was replaced"
        if problem := parameters_problem([("", layer), *self.others]):
            return problem
        if problem := self.family.refuses(layer):
            return problem
        numbers, adapters = self.family.numbers(layer), self._adapters()
        for key, number in numbers.items():
            if not isinstance(number, Real):
                return f"its {key} is not a number"
        if adapters != self.adapters:
            return self._changed(layer, "its adapters were changed")
        if numbers != self.numbers:
            self._make_block(layer, numbers, adapters)
        return None

    def _changed(self, layer: nn.Module, reason: str) -> str | None:
        # Adapters that were added, merged or removed change modules, too.
        if self.projected:
            return reason
        self.problem = submodules_problem(layer, self.family)
        if self.problem is None:
            self._read_modules(layer)
        else:
            self.problem, self.watched = f"{reason}: {self.problem}", self._watch(layer)
        return self.modules_problem(layer)

    def tensors_problem(self, x: Any, weights: list[Any]) -> str | None:
        """Why the tensors of this pass make the layer's own forward run."""
        if type(x) is not torch.Tensor:
            return f"it is given a {type(x).__name__}"
        if under_transform():
            return "a transform of torch.func or forward-mode differentiation runs"
        if running_backward_pass() != -1:
            return "a backward pass runs, as of checkpointing"
        for i, weight in enumerate(weights):
            if i in self.provided:
                continue
            if type(weight) not in _WEIGHTS:
                return f"it has weights of type {type(weight).__name__}"
            if type(weight) is not Carrier and internal_overlap(weight) == 1:  # a carrier is expanded while it is zero
                return "elements of a weight share memory, as of an expanded tensor"
        kind = kind_of(x)
        if not can_compute_on(kind):
            return f"the package was built without kernels for {kind}"
        dtype = _type_of(x)
        if dtype not in TYPES or x.dtype not in TYPES:
            return f"it computes in {dtype if dtype not in TYPES else x.dtype}"
        if weights[0].device != x.device:
            return "its weights lie on another device than its input"
        for norm in self.norms:
            if weights[norm].dtype not in (torch.float32, x.dtype):
                return f"its norms are {weights[norm].dtype}, what they read is {x.dtype}"
        autocast = torch.is_autocast_enabled(kind)
        if problem := self._provided_problem(weights, dtype, autocast) if self.provided else None:
            return problem
        if not self.provided and not autocast and weights[self.matrices[0]].dtype != x.dtype:
            return f"its weights are {weights[self.matrices[0]].dtype}, what they read is {x.dtype}"
        return self._saved_tensors_problem()

    @staticmethod
    def _only_recorders(hooks: dict) -> bool:
        # transformers leaves the hooks of its recorders on modules; in most passes they record nothing.
        recorders = all(hook.__module__ == RECORDERS for hook in hooks.values())
        return recorders and not records_attention()

    @staticmethod
    def _saved_tensors_problem() -> str | None:
        hooks = top_saved_tensors_hooks(True)
        if hooks is None or getattr(hooks[0], "__module__", "").startswith("compact."):
            return None
        return "hooks for saved tensors are in force around it, as of checkpointing or offloading"


@functools.cache
def _attributes() -> frozenset[str]:
    """The names of the attributes that a LayerState has: those that its methods assign."""
    methods = [method for method in vars(LayerState).values() if inspect.isfunction(method)]
    return frozenset(step.argval for method in methods for step in dis.get_instructions(method) if step.opname == "STORE_ATTR")


def _type_of(x: torch.Tensor) -> torch.dtype:
    """The type that a layer computes in where it is given x."""
    kind = kind_of(x)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _check_projected(state: LayerState, weights: list[Any], reason: str | None) -> None:
    if reason is not None and any(weights[i].requires_grad for i, _ in state.carriers):
        raise RuntimeError(
            f"compact: {state.name} has projected gradients, but must run its own forward, which cannot project them: {reason}. "
            "Use torch.no_grad(), or apply a policy without `grad` lines, as exact"
        )
    with without_torch_function():  # a use by the layer
        for i, j in state.carriers:
            check_carrier(weights[i], weights[j], state.name)


def forward(layer: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of a layer that is served: one node of the graph, or the layer's own code."""
    state: LayerState = layer.__dict__[STATE]
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if state.first:
        call_arguments.begin_pass()
    arguments, reason = call_arguments.arguments_by_name(state.arguments, args, kwargs)
    reason = reason or state.modules_problem(layer)
    weights = state.weights()
    reason = reason or state.tensors_problem(hidden_states, weights)
    mask, cos, sin = None, None, None
    if reason is None:
        mask = call_arguments.attention_mask(state.attention, state.family, state.numbers, layer.training, arguments, hidden_states)
        reason = mask.reason
    if reason is None and "position_embeddings" in arguments:
        tables = call_arguments.rotary_tables(arguments, hidden_states)
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
        if state.notes.fits_served:
            state.notes.say("the budget was planned for layers that are served, and a pass in which they keep their own forward may take more: plan with `batch` as a dictionary of what such a pass is given")
        begin_scope(state.notes)
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    if getattr(layer, "gradient_checkpointing", False) and layer.training:
        state.notes.say(f"gradient_checkpointing is on, and has no effect on layers that compact serves: {INSTEAD}")
    state.calls += 1
    state.served = True
    state.mask = 0
    with without_torch_function():
        weights = state.given(weights, _type_of(hidden_states))
        y = state.block.forward(hidden_states, weights, cos, sin, mask.lengths, mask.ranges, layer.training)
    if mask.lengths is not None or mask.ranges is not None:
        state.mask = arguments["attention_mask"].untyped_storage().nbytes()
    return y
