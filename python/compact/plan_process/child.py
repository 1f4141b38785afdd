# SPDX-License-Identifier: Apache-2.0
"""The work of the process that plans: it runs steps of a model on the meta device, where tensors take no
memory, and counts what they would take."""
from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Iterator
from typing import Any, IO

import torch
from torch import nn

from ..any_network.network_state import NetworkState, ScopeState
from ..base.library import classes, ops
from ..base.log import log
from ..base.torch_private import storage_id
from ..layers import apply, masks
from ..layers.patched_forward import SCOPE, state_of
from ..layers.plain_loss import makes_plain_loss
from ..layers.served_layer import LayerState
from ..layers.weight_providers import weights_of
from ..optim import Muon
from ..optimizers.optimizer import Optimizer
from ..planning import known_values
from ..planning.client import OF_SCRIPT
from ..projected_weights.carriers import Carrier, projection_problems
from . import attention, autocast, operations
from .asked_model import inputs_of, loss_of, model_of
from .network_search import NetworkSearch

_kept = []  # registrations live as long as this process


class _Step:
    """A training step of a model, and what it takes under one policy after another."""

    def __init__(self, asked: dict):
        built = classes.StepTrace(0, False, False)
        self.model = model_of(asked).train()
        self.given = inputs_of(asked, self.model)
        self.loss = loss_of(asked)
        self.clip, self.autocast, self.chunked_loss = asked["clip"], asked["autocast"], asked["chunked_loss"]
        built.stop()
        self._built, self._asked, self._bare = built, asked["optimizer"], ops.planned_bytes()
        self._remembers = asked["device"] == "cuda"  # its allocator keeps memory of earlier steps
        self.optimizer, self.parameters, self._moments, self._left = None, [], None, 0
        self.treat(None)

    def treat(self, policy: str | None) -> None:
        """Gives the model this policy; None: takes every one back."""
        optimizer, parameters = (self.optimizer, self.parameters) if self._keeps_optimizer() else (None, [])
        self._outside = 0 if optimizer is None else -self._state_bytes()
        self.optimizer, self.parameters = None, []
        for p in self.model.parameters():  # of a step that failed
            p.grad = None
        apply.remove(self.model)
        masks._last.result = None  # lengths of samples, which each step keeps for the next
        gc.collect()  # objects in circles would be freed within a step
        self._outside += ops.planned_bytes() - self._bare  # a search holds tensors, too
        if policy is not None:
            apply.apply(self.model, policy, chunked_loss=self.chunked_loss)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._earlier, self._first = [self._built], True
        if self._asked is None:
            return
        cls, settings = self._asked
        if any(isinstance(p, Carrier) for p in self.parameters):
            self.check_projects()
        if self.moments() and policy is not None and ops.moments_of(policy):
            settings = settings | {"moments": ops.moments_of(policy)}
        if self.is_ours() and str(settings.get("moments")).endswith("+disk") and settings.get("offload_folder") is None:
            settings = settings | {"offload_folder": "."}  # plans make no files
        before, self._moments = self._moments, settings.get("moments")
        if optimizer is not None:
            if before == self._moments and list(map(id, parameters)) == list(map(id, self.parameters)):
                self.optimizer, self._first = optimizer, False
                return
            del optimizer
            gc.collect()
        self._left = -ops.planned_bytes()
        self.optimizer = cls(self.model if issubclass(cls, Muon) else self.parameters, **settings)

    def _keeps_optimizer(self) -> bool:
        """Whether the next policy can have the optimizer of this one, with what its first step made: all of it is known state."""
        made = self.optimizer is not None and not self._first and not self._remembers
        return (
            made
            and self._left == self._state_bytes()
            and not getattr(self.optimizer, "releases", False)
            and not any(isinstance(p, Carrier) for p in self.parameters)
        )

    def moments(self) -> str:
        """How all moments are held where no policy says it; empty: none can."""
        cls, settings = self._asked or (None, {})
        return cls.usual_moments if self.is_ours() and settings.get("moments") is None else ""

    def is_ours(self) -> bool:
        """Whether its optimizer is of compact.optim."""
        return self._asked is not None and issubclass(self._asked[0], Optimizer)

    def check_projects(self) -> None:
        """Throws ValueError where the optimizer is none for projected gradients."""
        if not self.is_ours():
            raise ValueError("projected gradients need compact.optim.AdamW or compact.optim.Muon: give it as `optimizer`")

    def run(self, operations: bool = False, segments: bool = False) -> Any:
        """The trace of one step, with its operations or what its layers are given, where a search asks for it."""
        if self._first and not segments:  # an optimizer makes its state in its first step, and has it in all others
            self._earlier.append(self._traced())
            self._first = False
            self._left += ops.planned_bytes()  # by the optimizer and its first step
        return self._traced(operations, segments)

    def planned(self, policy: str, operations: bool, segments: bool) -> tuple[Any, int]:
        """The trace of a step under a policy and the bytes that it reserves; -1 if the preset is not for the model."""
        try:
            self.treat(policy)
        except ValueError:
            if "\n" in policy:  # lines, which the search has made for the model
                raise
            trace = classes.StepTrace(self._outside, operations, segments)
            trace.stop()
            return trace, -1
        if segments:
            self._keep_full()
        trace = self.run(operations, segments)
        if segments and not any(state.served for state in _layers_of(self.model)):
            raise _NoneServed
        return trace, self.reserved(trace)

    def reserved(self, trace: Any) -> int:
        """Bytes that a step reserves after those before it."""
        return trace.reserved(self._earlier)

    def largest_saved(self) -> int:
        """Bytes of the largest tensor that the last pass saved in a scope."""
        return max((t.bytes for t in self._saved()), default=0)

    def holds_by_values(self) -> bool:
        """Whether values decide in how many bytes the last pass holds a tensor: indices, which are held in the narrowest type."""
        return any(t.dtype == torch.int64 and t.treatment == "keep" and t.bytes >= 8 * 1024 for t in self._saved())

    def _saved(self) -> list[Any]:
        reports = filter(None, (scope.saved for scope in _scopes_of(self.model)))
        return [t for report in reports for t in report if not t.parameter]

    def _keep_full(self) -> None:
        """Says to the blocks which gradients apply() would refuse to project."""
        weights, products = [], {}
        for module in self.model.modules():
            if not isinstance(state := state_of(module), LayerState):
                continue
            for inside, product in state.modules_of(module, state.family.products.keys() - state.projected.keys()):
                weights.append((f"{state.name}.{product}", inside.weight))
                products[weights[-1][0]] = (state.block, product)
        for name in projection_problems(weights, self.model):
            block, product = products[name]
            block.keep_full(product)

    def row(self, name: str) -> dict:
        """The bytes of a step of the model as it is now."""
        trace = self.run()
        if any(scope.has_budget for scope in _scopes_of(self.model)):  # the first pass does not know yet how much it saves
            trace = max(trace, self.run(), key=self.reserved)
        peak, gradients, saved, workspace, moment = trace.peak()
        return {
            "policy": name,
            "peak": peak,
            "reserved": self.reserved(trace),
            "weights": weights_of(self.model)[1],
            "optimizer": self._state_bytes(),
            "outside": self._state_bytes(outside=True),
            "gradients": gradients,
            "saved": saved,
            "workspace": workspace,
            "at": moment,
        }

    def _state_bytes(self, outside: bool = False) -> int:
        """Bytes of the optimizer's state on the device; `outside`: in files, or on the host of a GPU."""
        if self.optimizer is None:
            return 0
        places = ("disk", "offload") if self._remembers else ("disk",)
        moved = [p for group in self.optimizer.param_groups if self.is_ours() and group["moments"].endswith(places) for p in group["params"]]
        moved, held = set(map(id, moved)), {}
        for p, state in self.optimizer.state.items():
            for t in state.values() if (id(p) in moved) == outside else ():
                if isinstance(t, torch.Tensor) and t.device.type == "meta":
                    held[storage_id(t.untyped_storage())] = t.untyped_storage().nbytes()
        return sum(held.values())

    def _traced(self, operations: bool = False, segments: bool = False) -> Any:
        trace = classes.StepTrace(self._outside, operations, segments)
        last = [m for m in self.model.modules() if isinstance(state_of(m), LayerState)][-1:]
        hooks = [m.register_forward_hook(lambda *_: trace.moment("loss")) for m in last]
        if getattr(self.optimizer, "releases", False):  # then no gradient is there after the backward pass
            hooks += [p.register_hook(trace.gradient) for p in self.parameters]
        try:
            trace.moment("forward")
            with known_values.KnownValues(), autocast.autocast(self.autocast):
                loss = self.loss(self.model(**self.given))
            trace.moment("backward")
            loss.backward()
            for p in self.parameters:
                if p.grad is not None:
                    trace.gradient(p.grad)
            if self.clip:
                trace.moment("gradient norm")
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
            if self.optimizer is not None:
                trace.moment("optimizer")
                with known_values.NumbersOfUpdates():
                    self.optimizer.step()
            for p in self.parameters:
                p.grad = None
        finally:
            for hook in hooks:
                hook.remove()
            trace.stop()
        return trace


def _plain(step: _Step, policy: str) -> None:
    """The model as it is without compact, as one of the policies that a table compares."""
    step.treat(None)
    switched = [m for m in step.model.modules() if hasattr(m, "gradient_checkpointing")]
    if policy == "gradient_checkpointing":
        if not switched or not hasattr(step.model, "gradient_checkpointing_enable"):
            raise ValueError("it has no gradient checkpointing")
        step.model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        for module in switched:
            module.gradient_checkpointing = False


class _NoneServed(Exception):
    """Every layer keeps its own forward, so that blocks have nothing to choose."""


def _layers_of(model: nn.Module) -> list[LayerState]:
    return [state for m in model.modules() if isinstance(state := state_of(m), LayerState)]


def _scopes_of(model: nn.Module) -> Iterator[ScopeState]:
    for module in model.modules():
        if isinstance(scope := module.__dict__.get(SCOPE) or state_of(module), ScopeState):
            yield scope


def _network_of(model: nn.Module) -> NetworkState | None:
    """The scope that holds the model's saved tensors if it is served as a whole."""
    return next((state for m in model.modules() if isinstance(state := state_of(m), NetworkState)), None)


def _why_none(model: nn.Module) -> str | None:
    """Why neither a layer was served nor a scope ran in the step before; None: one did."""
    named = [(name, state_of(module)) for name, module in model.named_modules()]
    states = _layers_of(model)
    if any(state.served for state in states) or any(scope.saved for scope in _scopes_of(model)):
        return None
    if network := _network_of(model):
        return next(iter(network.own), "no pass with gradients came to it")
    own = next((reason for state in states for reason in state.own_forward), "no pass with gradients came to them")
    return own if states else apply.each_problem((name, s) for name, s in named if isinstance(s, str)) or own


def _search(step: _Step, asked: dict) -> Any:
    """The search for the fastest policy of a model's served layers whose step takes no more than a budget."""
    if "project" in asked["allow"]:
        step.check_projects()
    _plain(step, "plain")
    library = torch.library.Library("compact", "FRAGMENT")
    library.impl("planned_step", step.planned, "CompositeExplicitAutograd")
    _kept.append(library)
    half = torch.bfloat16 in (asked["autocast"], next(step.model.parameters()).dtype)
    return classes.PolicySearch(asked["allow"], step.moments(), half, asked["tf32"], asked["speeds"])


def _chosen_for_layers(step: _Step, asked: dict, budget: int) -> dict:
    search = _search(step, asked)
    found = search.find(budget)
    reply = {"speeds": search.speeds()}
    if found is None:
        return reply | {"auto": None, "least": search.least_peak(), "ours": step.is_ours(), "projects": step.is_ours()}
    return reply | {"auto": dict(zip(("text", "seconds", "added_seconds", "error", "lossless"), found))}


def _chosen_for_network(step: _Step, asked: dict, budget: int) -> dict:
    network = _network_of(step.model)
    step.run()
    if "project" in asked["allow"]:
        why = network.reason if network else next((reason for state in _layers_of(step.model) for reason in state.own_forward), "none was served")
        raise ValueError(f"compact.plan: projected gradients need layers that compact knows, and {why}")
    if reason := _why_none(step.model):
        raise ValueError(f"compact.plan: nothing of the network is held by a policy: {reason}")
    search = NetworkSearch(step, asked["allow"])
    found = search.find(budget)
    if found is None:
        return {"whole": True, "auto": None, "least": search.least(), "ours": step.is_ours(), "projects": False}
    figures = {"seconds": None, "added_seconds": None, "error": 0.0 if found.exact else None, "lossless": found.lossless}  # times are not predicted
    return {"whole": True, "auto": figures | {"text": found.text}}


def answer(asked: dict) -> dict:
    torch.set_num_threads(asked["threads"])
    torch.use_deterministic_algorithms(asked["deterministic"], warn_only=True)
    for name, value in asked["cudnn"].items():  # by which convolutions may run again
        setattr(torch.backends.cudnn, name, value)
    operations.use(asked["device"], asked["gpu"])
    attention.use(asked["device"])
    autocast.use(asked["device"])
    step = _Step(asked)
    if asked["device"] == "cpu" and any(isinstance(m, nn.LSTM) for m in step.model.modules()):
        raise ValueError("compact.plan: what nn.LSTM takes on a CPU is not known: oneDNN runs it as a whole" + known_values.NO_PLAN_NEEDED)
    rows, failed, whole, in_scope = [], {}, False, False
    for policy in asked["policies"]:
        try:
            if policy in ("plain", "gradient_checkpointing"):
                _plain(step, policy)
            else:
                _plain(step, "plain")
                step.treat(policy)
            row = step.row(policy)
            whole |= _network_of(step.model) is not None
            in_scope |= any(scope.saved for scope in _scopes_of(step.model))
            if policy not in ("plain", "gradient_checkpointing") and (reason := _why_none(step.model)):
                raise ValueError(f"no layer would be served: {reason}")
            rows.append(row)
        except ValueError as error:
            if policy in asked["must"]:
                raise
            failed[policy] = str(error)
    reply = {
        "rows": rows,
        "failed": failed,
        "whole": whole,
        "in_scope": in_scope,
        "chunks": step.chunked_loss is None and any(makes_plain_loss(type(m)) for m in step.model.modules()),
        "mask": step.given.get("attention_mask") is not None if "input_ids" in step.given else None,
        "model": type(step.model).__name__,
        "parameters": weights_of(step.model)[0] - sum(p.numel() for p in step.model.parameters() if isinstance(p, Carrier)),
    }
    if asked["device"] == "cuda":
        reply["gpu"], reply["memory"] = ops.planned_gpu_memory()
    budget = asked["budget"]
    if isinstance(budget, float):  # a part of what the model takes without compact
        plain = next((row["reserved"] for row in rows if row["policy"] == "plain"), None)
        if plain is None:
            raise ValueError(f"compact.plan: the model's own step, of which the budget is a part, cannot be planned: {failed['plain']}")
        budget *= plain
    if budget is not None:
        reply["budget"] = budget = int(min(budget, 2**63 - 1))
        step.treat("exact")
        try:
            chosen = None if _network_of(step.model) else _chosen_for_layers(step, asked, budget)
        except _NoneServed:
            step.treat("exact")
            chosen = None
        reply["chunks"] &= chosen is None and _network_of(step.model) is not None
        reply |= chosen or _chosen_for_network(step, asked, budget)
        if reply["auto"] is not None:
            step.treat(reply["auto"]["text"])
            reply["auto"] = step.row("auto") | reply["auto"]
    return reply


def reply(request: IO[bytes]) -> dict:
    """The answer to what a file asks, or {"error": why there is none}."""
    log.setLevel("ERROR")
    try:
        return answer(pickle.load(request))
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # the model's, its optimizer's
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, AttributeError) and "__main__" in message:
            return {"error": OF_SCRIPT.format(error)}
        hint = known_values.NO_PLAN if "meta" in message else ""
        return {"error": f"compact.plan: the step that is planned failed with {message}{hint}", "trace": traceback.format_exc()}
