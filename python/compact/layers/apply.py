# SPDX-License-Identifier: Apache-2.0
"""apply(), remove() and report(): the layers of a model run forward passes of the library."""
from __future__ import annotations

import collections
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from ..any_network.network_state import around_layers, NetworkState, ScopeState
from ..base.library import ops
from ..base.log import Notes
from ..base.policy import moments_of, policy_text, presets
from ..base.torch_private import REPLICATE
from ..base.type_names import origin_of
from ..planning.plan import Plan, plan
from ..projected_weights.carriers import add_carrier, check_removal, projection_problems, remove_carrier
from . import fused_head, loss, served_layer
from .adapters import plain
from .eligibility import layer_problem
from .families import check_version, FAMILIES, Family, family_of
from .patched_forward import Around, check_module, Forward, KEPT, LOSS, Replicate, SCOPE, STATE, state_of
from .plain_loss import makes_plain_loss
from .report import LayerReport, Report
from .served_layer import LayerState

Model = TypeVar("Model", bound=nn.Module)


def _candidates(model: nn.Module) -> list[tuple[str, nn.Module, Family, str | None]]:
    found = []
    for name, module in model.named_modules():
        family, problem = family_of(module)
        if family is not None:
            found.append((name, module, family, problem))
    return found


def _others(model: nn.Module, known: set[nn.Module]) -> tuple[list[tuple[str, nn.Module]], list[str]]:
    """Layers of unknown classes in lists of modules, as of a vision tower; and all other modules with parameters, with their classes."""
    layers, rest, inside = [], [], set(known)
    whole = {m for m in model.modules() if m not in known and not known.isdisjoint(m.modules())}
    for name, module in model.named_modules():  # a module comes before its submodules
        if module in inside:
            inside.update(module.children())
        elif isinstance(module, nn.ModuleList):
            found = [(f"{name}.{key}", m) for key, m in module.named_children() if m not in known | whole and any(True for _ in m.parameters())]
            layers += found
            inside.update(m for _, m in found)
    whole |= {m for m in model.modules() if not inside.isdisjoint(m.modules())}
    for name, module in model.named_modules():
        if module in inside or module in whole:
            continue
        inside.update(module.modules())
        if any(True for _ in module.parameters()):
            rest.append(f"{name} ({type(module).__name__})")
    return layers, rest


_PLAN_SETTINGS = ("padded", "allow", "optimizer", "clip", "device", "gpu", "autocast", "loss")  # arguments of plan() that a budget may have


def _asked_for(policy: Any, budget: Any, batch: Any, chunked_loss: bool | None, settings: dict) -> str | os.PathLike | None:
    """The policy argument of apply() after checks; None: plan() chooses one for the budget."""
    automatic = policy == "auto" or (policy is None and budget is not None)
    unknown = [name for name in settings if name not in _PLAN_SETTINGS]
    if unknown:
        raise TypeError(f"compact.apply: no such argument: {', '.join(unknown)}; with a budget there are {', '.join(_PLAN_SETTINGS)}")
    if settings and not automatic:
        raise TypeError(f"compact.apply: {', '.join(settings)}: only with a budget")
    if not automatic and budget is not None:
        raise ValueError(
            "compact.apply: give a policy or a budget, not both; of a network as a whole a budget of what it saves is a line of its policy: "
            "slot role:heavy = recompute:budget=40%"
        )
    if budget is not None and batch is None:
        raise ValueError('compact.apply: a budget needs the batch that it is for: apply(model, budget="10GiB", batch=(8, 2048))')
    if batch is not None and not automatic:
        raise ValueError('compact.apply: batch: only with a budget: apply(model, budget="10GiB", batch=(8, 2048))')
    if automatic != (budget is not None) or automatic != (batch is not None):
        raise ValueError('compact.apply: policy "auto" takes a byte budget and a batch: apply(model, budget="10GiB", batch=(8, 2048))')
    if automatic and chunked_loss is False:
        raise ValueError("compact.apply: policy `auto` makes the loss in chunks, which chunked_loss=False forbids")
    if isinstance(policy, Plan):
        if policy.policy is None:
            raise ValueError("compact.apply: the plan has no policy, which a budget gives it")
        return policy.policy
    return None if automatic else "exact" if policy is None else policy


def apply(
    model: Model,
    policy: str | os.PathLike | Plan | None = None,
    *,
    chunked_loss: bool | None = None,
    budget: int | str | None = None,
    batch: int | tuple[int, int] | dict[str, torch.Tensor] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Model:
    """Lets a model train in less memory: its layers hold what their backward pass reads as `policy` says. Returns the model.

    policy: a preset's name ("exact", which is the default, "recompute", "gact-l1", ...;
    compact.presets()), the path of a policy's file, its text, or a plan for a budget. With a `budget` and
    a `batch` it is "auto": what plan() chooses for them and the same `settings` (padded, allow, optimizer,
    clip, device, gpu, autocast, loss).

    Optimizers are to be made after apply(). A policy with `grad` lines, as "compact", projects
    gradients: weights that it names are frozen, and parameters `carrier` beside them take their
    gradients, for compact.optim alone. `seed`: of the projections; ranks of one run must be given the
    same.

        compact.apply(model, "recompute")
        compact.apply(model, budget="10GiB", batch=(8, 2048), allow="quantize")

    Layers that the library knows (compact.families()) get another forward pass, one node of the graph
    each, and where the policy says so a causal language model in training makes its loss in chunks
    where it is given labels; its output then has no logits. `chunked_loss=False` leaves the loss
    alone; True has that of a network of which no layer is known made so, too, up to rounding. Models inside other modules are found. Classes, submodules, parameters and their names stay
    as they are, and the layers' own forward runs wherever a block would compute something else:
    report() counts and names that.

    Where no layer can be served and none has adapters, the whole forward pass runs in a scope of
    saved_tensors(policy, model): "exact" rebuilds what cheap operations made, with a budget of a step or the line
    `slot role:heavy = recompute:budget=40%` products and the like, too; the GACT levels hold codes.

    Throws ValueError on a policy that is malformed, names slots that the layers lack, or asks for what
    the package does not do there, and where the model has a policy;
    torch.OutOfMemoryError where no policy meets the budget. Then nothing was changed.
    """
    check_module("apply", model)
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"compact.apply: seed must be a whole number of 64 bits, is {seed!r}")
    if chunked_loss not in (None, True, False):
        raise TypeError(f"compact.apply: chunked_loss must be True, False or None, is {chunked_loss!r}")
    chosen = policy if isinstance(policy, Plan) else None
    if chosen is not None and chunked_loss is None:
        chunked_loss = chosen.chunked_loss
    policy = _asked_for(policy, budget, batch, chunked_loss, settings)
    text = "" if policy is None else policy_text(policy)
    found = _candidates(model)
    if any(STATE in module.__dict__ for module in model.modules()):
        raise ValueError("compact.apply: this model has a policy already: compact.remove(model) takes it back")
    if not found:
        classes = ", ".join(sorted({type(module).__name__ for _, module in _others(model, set())[0]})) or "no list of layers"
        reason = f"no layer of {type(model).__name__} is known (it has {classes}); known: {_known_layers()}"
    else:
        check_version()
    if policy is None:
        try:
            chosen = plan(model, batch, policies=(), budget=budget, chunked_loss=chunked_loss, **settings)
        except (ValueError, TypeError, torch.OutOfMemoryError) as error:
            raise type(error)("compact.apply:" + str(error).replace("compact.plan:", "").replace("  ", " ")) from None
        policy = chosen.policy
        text = policy_text(policy)
    planned = chosen is not None
    if not found:
        return _apply_to_network(model, policy, text, reason, planned, chunked_loss)
    notes = Notes()
    notes.fits_served = planned and not chosen.whole
    states: list[tuple[nn.Module, LayerState | str]] = []
    for number, (_, module, family, problem) in enumerate(found):
        problem = problem or layer_problem(module, family)
        states.append((module, problem or LayerState(module, family, number, text, seed, notes)))
    served = [state for _, state in states if isinstance(state, LayerState)]
    if not served:
        reason = "no layer of it can be served: " + each_problem((name, state) for (name, *_), (_, state) in zip(found, states))
        if not any(plain(m) is not m for m in model.modules()):  # which may be removed later
            return _apply_to_network(model, policy, text, reason, planned, chunked_loss)
        notes.say(f"{reason}; all keep their own forward")
    slots = [slot for state in served for slot in state.block.slots()]
    slots += [("loss.logits", "logits", False), ("", "cheap", False), ("", "heavy", False)]  # of the loss, and of what runs around layers
    products = [f"{state.name}.{product}" for state in served for product in state.family.products]
    names, roles, in_tiles = zip(*slots)
    if served:
        ops.check_patterns(os.fspath(policy), list(names), list(roles), list(in_tiles), products)
    projected = [
        (f"{state.name}.{product}", inside.weight)
        for module, state in states
        if isinstance(state, LayerState)
        for inside, product in state.projected_modules(module)  # some of several matrices
    ]
    for problem in projection_problems(projected, model).values() if projected else ():
        raise ValueError(f"compact.apply: {problem}")
    layers = {module for module, _ in states}
    models = [m for m in model.modules() if m not in layers and not layers.isdisjoint(m.modules())]
    whole = [m for m in models if loss.takes_cache(m) or ("forward" not in m.__dict__ and makes_plain_loss(type(m)))]
    for module, state in states:
        module.__dict__[STATE] = state
        if isinstance(state, LayerState):
            for inside, product in state.projected_modules(module):
                add_carrier(inside, state.projected[product], bool(state.numbers.get("transposed")))
            _replace_forward(module, served_layer.forward)
    for module in whole:
        _replace_loss(module, text, chunked_loss is not False, notes)
    if around := around_layers(text):
        waits = len(served) == len(states) and not _others(model, layers)[0]
        for module in [m for m in models if _has_scope(m)]:
            module.__dict__[SCOPE] = ScopeState(around, waits, notes)
            _replace_forward(module, _run_around, Around)
    return _with_policy(model, [model, *layers, *whole], policy, text, planned)  # an optimizer may be given a part of the model


def _replace_loss(module: nn.Module, text: str, chunked: bool, notes: Notes) -> None:
    try:
        keeps_logits, tokens = ops.loss_chunk(text)
    except ValueError:
        if makes_plain_loss(type(module)):
            raise
        keeps_logits, tokens = True, 0  # it has no slot of logits that the line could be for
    chunked = chunked and not keeps_logits
    own = loss.own_loss(module, chunked)
    module.__dict__[LOSS] = loss.LossState(tokens, chunked, own, loss.takes_cache(module), notes)
    fused_head.remember(module)
    _replace_forward(module, loss.model_forward)
    if own is None:
        _replace_forward(module.lm_head, loss.head_forward)


def _has_scope(module: nn.Module) -> bool:
    """Whether the forward pass of a module with layers inside may run in a scope: it is the module's own, and not a wrapper of torch's."""
    own = type(module).forward
    replaced = "forward" in module.__dict__ and STATE not in module.__dict__
    return own is not nn.Module.forward and not replaced and not origin_of(inspect.unwrap(own)).startswith("torch.")


def _run_around(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    scope, own = module.__dict__.get(SCOPE), _own_or_loss(module)  # none: another policy was applied since
    return scope.run(module, own, args, kwargs) if scope else own(module, *args, **kwargs)


def _own_or_loss(module: nn.Module) -> Callable:
    return loss.model_forward if LOSS in module.__dict__ else type(module).forward


def _with_policy(model: Model, modules: Iterable[nn.Module], policy: str | os.PathLike, text: str, planned: bool) -> Model:
    for module in modules:
        module.__dict__["_compact_policy"] = ("auto" if planned else _name_of(policy), text)
    if moments := moments_of(model):
        Notes().say(f"this policy holds moments in {moments}: pass the model to an optimizer of compact.optim, or moments={moments!r} with parameters")
    return model


def each_problem(named: Iterable[tuple[str, str]]) -> str:
    """Every problem of layers once, with the first layer that has it."""
    first = {}
    for name, problem in named:
        first.setdefault(problem, name)
    return "; ".join(f"{name}: {problem}" for problem, name in first.items())


def _known_layers() -> str:
    return ", ".join(sorted(family.layer.rsplit(".", 1)[1] for family in FAMILIES))


def _apply_to_network(model: Model, policy: str | os.PathLike, text: str, reason: str, planned: bool, chunked_loss: bool | None) -> Model:
    """Lets the whole model's forward pass run in a scope of saved_tensors(), and makes its loss in chunks where that is asked for."""
    if "forward" in model.__dict__:
        raise ValueError(f"compact.apply: {reason}; and its own forward was replaced")
    if type(model).forward is nn.Module.forward:
        raise ValueError(f"compact.apply: {reason}; and {type(model).__name__} has no forward pass")
    try:
        state = NetworkState(os.fspath(policy), text, reason, planned)
    except ValueError as error:
        raise ValueError(f"compact.apply: {reason}. In a network as a whole: {error}") from None
    for module in model.modules() if chunked_loss else ():
        if "forward" not in module.__dict__ and makes_plain_loss(type(module)):
            _replace_loss(module, text, True, Notes())
    model.__dict__[STATE] = state
    _replace_forward(model, _run_network)
    return _with_policy(model, [model], policy, text, planned)


def _run_network(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return state_of(module).run(module, _own_or_loss(module), args, kwargs)


def _name_of(policy: str | os.PathLike) -> str:
    name = os.fspath(policy)
    return name if name in presets() or os.path.exists(name) else "given as text"


def _replace_forward(module: nn.Module, function: Callable, kind: type[Forward] = Forward) -> None:
    module.__dict__.setdefault(STATE, True)
    module.forward = kind(function, module)
    module.__dict__[REPLICATE] = Replicate(None, module)


def remove(model: Model) -> Model:
    """Takes back what apply() did; returns the model. Does nothing where it did nothing.

    Throws RuntimeError, with nothing changed, where gradients are projected in a model that
    DistributedDataParallel wraps, which would not know the weights that take them then.
    """
    check_module("remove", model)
    check_removal(model)
    for module in model.modules():
        remove_carrier(module)
        if STATE not in module.__dict__:
            continue
        for name in ("forward", "_old_forward"):  # accelerate's hooks keep the forward that they wrap
            given = module.__dict__.get(name)
            if isinstance(given, Forward):
                if name == "forward":
                    del module.__dict__[name]
                else:
                    module.__dict__[name] = type(module).forward.__get__(module)
        for name in (*KEPT, REPLICATE):
            module.__dict__.pop(name, None)
    for module in model.modules():
        module.__dict__.pop("_compact_policy", None)
    return model


def report(model: nn.Module) -> Report:
    """Layer by layer, whether compact serves it and what was held in the last step."""
    check_module("report", model)
    rows = []
    candidates = _candidates(model)
    network = next((s for s in map(state_of, model.modules()) if isinstance(s, NetworkState)), None)
    for name, module, family, problem in candidates:
        state = state_of(module)
        if isinstance(state, LayerState):
            rows.append(
                LayerReport(
                    name, state.name, None, state.calls, dict(state.own_forward), state.served,
                    state.block.held() if state.served else [],
                    *_masking(state),
                    dict(collections.Counter(provider.name for _, provider in state.provided.values())),
                    state.block.tiles() if state.served else [],
                )
            )  # fmt: skip
        else:
            rows.append(LayerReport(name, None, state or problem or (layer_problem(module, family) if network else None)))
    others, rest = _others(model, {module for _, module, _, _ in candidates})
    if network is None:
        rows += [LayerReport(name, None, f"{type(module).__name__} is none of the layers that compact knows") for name, module in others]
    found = (m.__dict__["_compact_policy"] for m in model.modules() if "_compact_policy" in m.__dict__)
    name, text = next(found, (None, None))
    if network is None:
        scopes = [m.__dict__[SCOPE] for m in model.modules() if SCOPE in m.__dict__]  # the outermost that was called has all
        return Report(text, rows, _loss_of(model), name, rest, next(filter(None, (scope.saved for scope in scopes)), None))
    saved = network.saved
    how = "the whole network by what its operations save; " + (
        f"{saved.stored:,} of {saved.bytes:,} bytes held in the last step, {network.calls} pass{'es' * (network.calls != 1)}" if saved else "there was no step yet"
    )
    how += "".join(f"; {count} by its own forward: {reason}" for reason, count in network.own.items())
    return Report(text, rows, _loss_of(model), name, rest, saved, how)


def _masking(state: LayerState) -> tuple[tuple[str, int, int] | None, tuple[str, int, int] | None]:
    """LayerReport's padding and ranges."""
    if not state.served or not state.mask:
        return None, None
    kernel, bias, ranges = state.block.masking()
    return (None, (kernel, ranges, state.mask)) if ranges else ((kernel, bias, state.mask), None)


def _loss_of(model: nn.Module) -> str:
    states = [m.__dict__[LOSS] for m in model.modules() if LOSS in m.__dict__]
    state = next((state for state in states if state.own_loss is None), states[0] if states else None)
    if state is None:
        text = next((m.__dict__["_compact_policy"][1] for m in model.modules() if "_compact_policy" in m.__dict__), "")
        able = any(makes_plain_loss(type(module)) for module in model.modules()) and not ops.loss_chunk(text)[0]
        return "the model's own" + "; chunked_loss=True makes it in chunks, in less memory, up to rounding" * able
    scored = sum(state.scored for state in states)
    scores = f"; log probabilities for TRL in {scored} passes" if scored else ""
    if state.own_loss is not None:
        return f"the model's own: {state.own_loss}{scores}"
    return f"in chunks, {state.calls} passes{scores}" + "".join(f"; {count} from all logits: {reason}" for reason, count in state.own.items())


def families() -> list[str]:
    """Classes of layers that apply() can serve."""
    return [family.layer for family in FAMILIES]
