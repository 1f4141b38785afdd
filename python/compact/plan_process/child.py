# SPDX-License-Identifier: Apache-2.0
"""What the process that plans does: runs steps of a model on the meta device, where tensors take no
memory, and counts what they would take."""
from __future__ import annotations

import pickle
import traceback
from typing import Any, IO

import torch
from torch import nn

from ..base.library import classes, ops
from ..base.log import log
from ..base.policy import policy_text
from ..base.torch_private import storage_id
from ..layers import apply
from ..layers.patched_forward import state_of
from ..layers.served_layer import LayerState
from ..optim import Muon
from ..optimizers.optimizer import Optimizer
from ..planning import known_values
from ..planning.client import OF_SCRIPT
from ..projected_weights.carriers import Carrier
from . import attention, autocast, operations
from .asked_model import inputs_of, model_of

LOSS = "loss.logits"
_TRIES = 32  # plans of a whole step, where the solver predicts less than one takes
_CHUNKS = ("chunk", "chunk:tokens=256", "chunk:tokens=64")  # of the loss, the fastest first


class _Step:
    """A training step of a model, and what it takes under one policy after another."""

    def __init__(self, asked: dict):
        built = classes.StepTrace()
        self.model = model_of(asked).train()
        self.given = inputs_of(asked, self.model)
        self.clip, self.autocast = asked["clip"], asked["autocast"]
        built.stop()
        self._built, self._asked = built, asked["optimizer"]
        self.treat(None)

    def treat(self, policy: str | None) -> None:
        """Gives the model this policy; None: takes every one back."""
        self.optimizer = None
        apply.remove(self.model)
        if policy is not None:
            apply.apply(self.model, policy)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._earlier, self._first = [self._built], True
        if self._asked is None:
            return
        cls, settings = self._asked
        if not issubclass(cls, Optimizer) and any(isinstance(p, Carrier) for p in self.parameters):
            raise ValueError("projected gradients need compact.optim.AdamW or compact.optim.Muon: give it as `optimizer`")
        self.optimizer = cls(self.model if issubclass(cls, Muon) else self.parameters, **settings)

    def run(self) -> Any:
        """The trace of one step."""
        if self._first:  # what an optimizer makes in its first step is there in all others
            self._first = False
            self._earlier.append(self._traced())
        return self._traced()

    def row(self, name: str) -> dict:
        """What a step takes as the model is now."""
        trace = self.run()
        peak, gradients, saved, workspace, moment = trace.peak()
        states = self._state_bytes()
        return {
            "policy": name,
            "peak": peak,
            "reserved": trace.reserved(self._earlier),
            "weights": sum({storage_id(s): s.nbytes() for s in (p.untyped_storage() for p in self.model.parameters())}.values()),
            "optimizer": states,
            "gradients": gradients,
            "saved": saved,
            "workspace": workspace,
            "at": moment,
        }

    def _state_bytes(self) -> int:
        if self.optimizer is None:
            return 0
        held = {}
        for state in self.optimizer.state.values():
            for t in state.values():
                if isinstance(t, torch.Tensor) and t.device.type == "meta":
                    held[storage_id(t.untyped_storage())] = t.untyped_storage().nbytes()
        return sum(held.values())

    def _traced(self) -> Any:
        for p in self.parameters:  # of a step that failed
            p.grad = None
        trace = classes.StepTrace()
        last = [m for m in self.model.modules() if isinstance(state_of(m), LayerState)][-1:]
        hooks = [m.register_forward_hook(lambda *_: trace.moment("loss")) for m in last]
        if getattr(self.optimizer, "releases", False):  # then no gradient is there behind the backward pass
            hooks += [p.register_hook(trace.gradient) for p in self.parameters]
        try:
            trace.moment("forward")
            with known_values.KnownValues(), autocast.autocast(self.autocast):
                loss = self.model(**self.given).loss
            if loss is None:
                raise ValueError("compact.plan: the model gives no loss: `batch` must hold its labels")
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


def _why_none(model: nn.Module) -> str | None:
    """Why none of the layers that a policy was given to was served in the step before; None: some were."""
    states = [s for s in map(state_of, model.modules()) if isinstance(s, LayerState)]
    if any(state.served for state in states):
        return None
    return next((reason for state in states for reason in state.own_forward), "no pass with gradients came to them")


class _Search:
    """The fastest policy of a model's served layers whose step takes no more than a budget."""

    def __init__(self, step: _Step, rates: tuple[float, float], quantize: bool):
        self._step, self._rates, self._quantize = step, rates, quantize
        _plain(step, "plain")
        step.treat(f"slot * = keep\nslot {LOSS} = chunk\n")
        states = [s for s in map(state_of, step.model.modules()) if isinstance(s, LayerState)]
        for state in states:
            state.block.watch()
        step.run()
        served = [state.block for state in states if state.served]
        if not served:
            raise ValueError(f"compact.plan: every layer keeps its own forward, so that there is nothing to choose: {_why_none(step.model)}")
        step.optimizer = None  # with release=True it would use the gradients of the layers that are timed
        self._layers = classes.LayerSearch(served, *rates, quantize)
        self.least: int | None = None  # bytes of what takes least, of all that were asked for

    def find(self, budget: int) -> dict | None:
        rows = (self._with_loss(f"slot {LOSS} = {chunk}\n", budget) for chunk in _CHUNKS)
        row = next(filter(None, rows), None) or self._recompute(budget)
        return row and row | {"lossless": row["error"] == 0, "forward_seconds": self._layers.forward_seconds()}

    def _recompute(self, budget: int) -> dict | None:
        """The preset that rebuilds everything: a GPU's allocator may hold less for it than for what is predicted to take least."""
        lines = policy_text("recompute")
        self._step.treat(lines)
        row = self._step.row("auto")
        self.least = min(self.least, row["reserved"])
        return row | {"text": lines, "added_seconds": self._layers.forward_seconds(), "error": 0.0} if row["reserved"] <= budget else None

    def _with_loss(self, loss: str, budget: int) -> dict | None:
        self._step.treat(self._layers.base_policy() + loss)
        base = self._step.run()
        smallest = self._planned(base, loss, self._layers.least_peak(base))
        self.least = min(self.least or smallest["reserved"], smallest["reserved"])
        if smallest["reserved"] > budget:
            return None
        predicted = budget
        for _ in range(_TRIES):
            row = self._planned(base, loss, predicted)
            if row is None:
                break
            if row["reserved"] <= budget:
                return row
            predicted = min(row["predicted"] - 1, predicted - (row["reserved"] - budget))
        return smallest

    def _planned(self, base: Any, loss: str, predicted: int) -> dict | None:
        """The whole step of the fastest policy that is predicted to take no more than that."""
        found = self._layers.solve(base, predicted)
        if found is None:
            return None
        lines, peak, nanoseconds, error = found
        self._step.treat(lines + loss)
        return self._step.row("auto") | {
            "text": lines + loss,
            "predicted": peak,
            "added_seconds": nanoseconds * 1e-9,
            "error": error,
        }


def answer(asked: dict) -> dict:
    torch.set_num_threads(asked["threads"])
    torch.use_deterministic_algorithms(asked["deterministic"], warn_only=True)
    operations.use(asked["device"], asked["gpu"])
    attention.use(asked["device"])
    autocast.use(asked["device"])
    step = _Step(asked)
    half = torch.bfloat16 in (asked["autocast"], next(step.model.parameters()).dtype)
    rates = ops.planned_rates(half, asked["tf32"]) if asked["device"] == "cuda" else (0.0, 0.0)
    rows, failed = [], {}
    for policy in asked["policies"]:
        try:
            if policy in ("plain", "gradient_checkpointing"):
                _plain(step, policy)
            else:
                _plain(step, "plain")
                step.treat(policy)
            row = step.row(policy)
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
        "mask": step.given.get("attention_mask") is not None if "input_ids" in step.given else None,
        "model": type(step.model).__name__,
        "parameters": sum(p.numel() for p in step.model.parameters() if not isinstance(p, Carrier)),
    }
    if asked["device"] == "cuda":
        reply["gpu"], reply["memory"] = ops.planned_gpu_memory()
    budget = asked["budget"]
    if isinstance(budget, float):  # a part of what the model takes without compact
        plain = next((row["reserved"] for row in rows if row["policy"] == "plain"), None)
        if plain is None:
            raise ValueError(f"compact.plan: the model's own step, of which the budget is a part, cannot be planned: {failed['plain']}")
        budget = int(budget * plain)
    if budget is not None:
        reply["budget"] = budget
        for quantize in (False, True) if asked["allow"] == "quantize" else (False,):
            search = _Search(step, rates, quantize)
            reply["auto"] = search.find(budget)
            reply["least"] = min(reply.get("least", search.least), search.least)
            if reply["auto"]:
                break
    return reply


def reply(request: IO[bytes]) -> dict:
    """The answer to what a file asks, or {"error": why there is none}."""
    log.setLevel("ERROR")
    try:
        return answer(pickle.load(request))
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # the model's, its optimizer's
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, AttributeError) and "__main__" in told:
            return {"error": OF_SCRIPT.format(error)}
        return {"error": f"compact.plan: the step that is planned failed with {told}", "trace": traceback.format_exc()}
