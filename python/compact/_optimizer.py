# SPDX-License-Identifier: Apache-2.0
"""What optimizers of the package have in common: checks of groups, state, and the call of the updates."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ._carriers import Carrier
from ._library import ops
from ._release import Release
from ._shards import is_sharded, like_sharded, local_of, shard_of

_MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f8": torch.uint8}
_SCALES = "_scales"
_BLOCK = ops.moment_block()
_SHORT_VECTOR = 65536
_WEIGHTS = (torch.float32, torch.bfloat16)


class _Kept:
    """State of one parameter that Optimizer.load_state_dict is to leave in its types."""

    def __init__(self, state: dict[str, Any]):
        self.state = state


def _projection(p: Carrier) -> torch.Tensor:
    """What it is projected with, as its state says it: a text's bytes, which every checkpoint can hold."""
    return torch.tensor(list(p.projected.settings().encode()), dtype=torch.uint8)


def _text(projection: Any) -> str | None:
    known = isinstance(projection, torch.Tensor) and projection.dtype == torch.uint8 and projection.dim() == 1
    return bytes(projection.tolist()).decode(errors="replace") if known else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Optimizer(torch.optim.Optimizer):
    """What both have: groups and their checks, state, and the call of the C++ updates."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], release: bool):
        if not isinstance(release, bool):
            self._fail(f"release must be of type bool, is {release!r}")
        self._release = Release(self) if release else None
        super().__init__(params, defaults)

    @property
    def releases(self) -> bool:
        """Whether updates are made inside the backward pass."""
        return self._release is not None

    def _kind(self, group: dict[str, Any]) -> str:
        return "adamw"

    def _fail(self, text: str) -> None:
        raise ValueError(f"compact.optim.{type(self).__name__}: {text}")

    def _place(self, group: dict[str, Any], number: int, i: int) -> str:
        name = group["param_names"][i] if i < len(group.get("param_names", ())) else None
        return f"parameter {i} of group {number}" + (f" ({name})" if name else "")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim.Optimizer's. Throws ValueError, with nothing added, on what cannot be."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        try:
            self._check_group(param_group, before, [p for p in param_group["params"] if p.requires_grad])
            if self._release is not None:
                self._release.hear(before, param_group)
        except BaseException:
            del self.param_groups[before:]
            raise
        self._draw()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim.Optimizer's."""
        super().zero_grad(set_to_none)
        if self._release is not None:
            self._release.begin()

    # -- checks -----------------------------------------------------------------------------------

    def _numbers(self, group: dict[str, Any]) -> dict[str, float]:
        def number(key: str, value: Any) -> float:
            try:
                if not isinstance(value, str):
                    return float(value)
            except (TypeError, ValueError):
                pass
            self._fail(f"{key} must be a number, is {value!r}")

        betas = group["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            self._fail(f"betas must be two numbers, are {betas!r}")
        given = {key: number(key, group[key]) for key in ("lr", "eps", "weight_decay")}
        given |= {"beta1": number("beta1", betas[0]), "beta2": number("beta2", betas[1])}
        given["momentum"] = number("momentum", group.get("momentum", 0.0))
        given["nesterov"] = float(bool(group.get("nesterov", True)))
        return given

    def _check_group(
        self, group: dict[str, Any], number: int, params: Iterable[torch.Tensor]
    ) -> dict[str, float]:
        """Throws ValueError on settings and parameters that cannot be; the numbers of an update."""
        if group["moments"] not in _TYPES:
            self._fail(f"moments must be one of {', '.join(_TYPES)}, is {group['moments']!r}")
        for key, wanted in (("master_weights", bool), ("seed", int)):
            if not isinstance(group[key], wanted) or isinstance(group[key], bool) != (wanted is bool):
                self._fail(f"{key} must be of type {wanted.__name__}, is {group[key]!r}")
        if not 0 <= group["seed"] < 2**63:
            self._fail(f"seed must be in [0, 2^63), is {group['seed']}")
        numbers, kind = self._numbers(group), self._kind(group)
        if kind not in _MOMENTS:
            self._fail(f"kind of a group must be one of {', '.join(_MOMENTS)}, is {kind!r}")
        try:
            ops.check_update_options(kind, numbers, group["moments"])
        except ValueError as error:
            self._fail(f"group {number}: {error}")
        checked = {id(p) for p in params}
        for i, p in enumerate(group["params"]):
            if id(p) in checked:
                self._check_parameter(p, group, self._place(group, number, i))
        return numbers

    def _check_parameter(self, p: torch.Tensor, group: dict[str, Any], place: str) -> None:
        if p.dtype not in _WEIGHTS:
            self._fail(f"{place} must be float32 or bfloat16, is {_name(p.dtype)}")
        if isinstance(p, Carrier):
            if is_sharded(p.weight):
                self._fail(f"{place} is the carrier of a weight that is split over ranks: projected gradients need whole ones")
            return
        if p.layout != torch.strided or not local_of(p.detach()).is_contiguous():
            self._fail(f"{place} must be dense and contiguous, has strides {tuple(p.stride())}")
        muon = self._kind(group) == "muon"
        if muon and p.dim() != 2:
            self._fail(f"{place} must be a matrix for Muon, has the shape {tuple(p.shape)}")
        if not is_sharded(p):
            return
        if muon:
            self._fail(
                f"{place} is split over ranks (a DTensor), and Muon needs whole matrices: train with DDP, "
                "or use compact.optim.AdamW"
            )
        if any(placement.is_partial() for placement in p.placements):
            self._fail(f"{place} is a DTensor of partial sums, {p.placements}")
        cut = [x for x in p.placements if not x.is_replicate()]
        if self._moment_type(p, group) == "f8" and cut and (p.dim() < 2 or any(x.dim != 0 for x in cut)):
            self._fail(
                f'{place}: moments="f8" needs whole rows, which {p.placements} cuts of the shape '
                f'{tuple(p.shape)}: give it a group with moments="bf16"'
            )

    def _check_gradient(self, p: torch.Tensor, place: str) -> None:
        grad = p.grad
        if grad.layout != torch.strided:
            self._fail(f"{place} has a sparse gradient ({grad.layout}), which is not supported")
        if grad.dtype not in _WEIGHTS:
            self._fail(f"the gradient of {place} must be float32 or bfloat16, is {_name(grad.dtype)}")
        if grad.shape != p.shape or grad.device != p.device or is_sharded(grad) != is_sharded(p):
            self._fail(
                f"the gradient of {place} must be as that, {tuple(p.shape)} on {p.device}, is "
                f"{tuple(grad.shape)} on {grad.device}"
            )

    def _check_draw(self, p: Carrier, place: str) -> None:
        period, state = p.projected.period(), self.state.get(p)
        draw = int(state["step"]) // period if state and period > 0 else 0
        if p.projected.draw() != draw:
            self._fail(
                f"{place} has projection {p.projected.draw()}, and its next update is of number {draw}: load the optimizer's state "
                "before the first pass of a run that goes on, and give products of one input to one optimizer; freeze and unfreeze "
                "them together"
            )
        if p.is_stale():
            self._fail(
                f"{place} has a gradient of a projection before the one in force: zero_grad() belongs between step() and the next "
                "backward pass, and the optimizer's state is loaded before the first pass"
            )

    # -- state ------------------------------------------------------------------------------------

    @staticmethod
    def _moment_type(p: torch.Tensor, group: dict[str, Any]) -> str:
        short = p.dim() < 2 and p.numel() < _SHORT_VECTOR
        return "f32" if group["moments"] == "f8" and short else group["moments"]

    def _layout(self, p: torch.Tensor, group: dict[str, Any]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes of the tensors of its state; of a DTensor, whole."""
        held, shape = self._moment_type(p, group), tuple(p.shape)
        rows, row = (shape[0], shape[1:]) if len(shape) > 1 else (1, shape)
        blocks = -(-torch.Size(row).numel() // _BLOCK)
        layout = {}
        for name in _MOMENTS[self._kind(group)]:
            layout[name] = (_TYPES[held], shape)
            if held == "f8":
                layout[name + _SCALES] = (torch.float32, (rows, blocks))
        if group["master_weights"] and p.dtype != torch.float32:
            layout["master"] = (torch.float32, tuple(p.weight.shape) if isinstance(p, Carrier) else shape)
        return layout

    def _new_state(self, p: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        local = local_of(p)
        state: dict[str, Any] = {"step": torch.zeros((), dtype=torch.int64)}
        if isinstance(p, Carrier):
            state["projection"] = _projection(p)
        for name, (dtype, shape) in self._layout(p, group).items():
            if not is_sharded(p):
                here = shape
            elif name.endswith(_SCALES):
                here = (local.shape[0], *shape[1:])
            else:
                here = tuple(local.shape)
            t = torch.zeros(here, dtype=dtype, device=local.device)
            if name == "master":
                t.copy_(p.weight if isinstance(p, Carrier) else local)
            state[name] = like_sharded(t, p, shape) if is_sharded(p) else t
        return state

    def _check_state(self, state: dict[str, Any], p: torch.Tensor, group: dict[str, Any], place: str) -> None:
        layout = self._layout(p, group)
        if isinstance(p, Carrier):
            if _text(state.get("projection")) != p.projected.settings():
                self._fail(
                    f"the state of {place} is of the projection {_text(state.get('projection'))!r}, here it is "
                    f"{p.projected.settings()!r}: apply the policy that it was trained with, with the same seed"
                )
            state = {k: v for k, v in state.items() if k != "projection"}
        if state.keys() != {"step", *layout}:
            self._fail(
                f"the state of {place} must be {sorted({'step', *layout})} (moments={group['moments']!r}, "
                f"master_weights={group['master_weights']}), is {sorted(map(str, state))}"
            )
        for name, (dtype, shape) in layout.items():
            t = state[name]
            if not isinstance(t, torch.Tensor) or t.dtype != dtype or tuple(t.shape) != shape:
                found = f"{_name(t.dtype)} {tuple(t.shape)}" if isinstance(t, torch.Tensor) else repr(t)
                self._fail(f"{name} of {place} must be {_name(dtype)} {shape}, is {found}")
            if is_sharded(t) != is_sharded(p) or (is_sharded(p) and t.placements != p.placements):
                self._fail(
                    f"{name} of {place} must be split over ranks as that is: "
                    "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict does it"
                )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch.optim.Optimizer's, but that every tensor comes back bit for bit, in its own type.

        What the groups were set to comes from `state_dict`. One of torch.optim.AdamW is taken, too,
        where moments are "f32". Throws ValueError, with nothing changed, on state that is not this
        optimizer's for these parameters.
        """
        # Torch casts floating-point state to the parameter's type, but for what it does not know.
        hook = self.register_load_state_dict_pre_hook(type(self)._with_kept_types)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        self._draw()

    def _with_kept_types(self, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        saved, here = state_dict["param_groups"], self.param_groups
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in here]:
            return None  # of which torch tells
        groups, places = [], {}
        for number, (old, now) in enumerate(zip(saved, here)):
            for key in ("amsgrad", "maximize"):
                if old.get(key):
                    self._fail(f"the state of group {number} is of {key}=True, which there is not here")
            if old.get("decoupled_weight_decay") is False and old.get("weight_decay"):
                self._fail(f"the state of group {number} is of weight decay as part of gradients, which there is not here")
            of_group = {k: v for k, v in now.items() if k != "param_names"} | old
            groups.append(of_group)
            as_here = of_group | {"params": now["params"]}
            self._check_group(as_here, number, [p for p in now["params"] if p.requires_grad])
            for i, (key, p) in enumerate(zip(old["params"], now["params"])):
                places[key] = (p, as_here, self._place(as_here, number, i))
        state = {}
        for key, of_parameter in state_dict["state"].items():
            if key not in places or not of_parameter:
                state[key] = of_parameter
                continue
            p, group, place = places[key]
            self._check_state(of_parameter, p, group, place)
            kept = {"step": torch.tensor(int(of_parameter["step"]), dtype=torch.int64)}
            if isinstance(p, Carrier):
                kept["projection"] = of_parameter["projection"].detach().cpu()
            for name in self._layout(p, group):
                kept[name] = of_parameter[name].detach().to(p.device).contiguous()
            state[key] = _Kept(kept)
        return {**state_dict, "state": state, "param_groups": groups}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "releases": self.releases}

    def __setstate__(self, state: dict[str, Any]) -> None:
        releases = state.pop("releases", None)  # there where it is a copy that is made
        for key, of_parameter in state["state"].items():
            if isinstance(of_parameter, _Kept):
                state["state"][key] = of_parameter.state
        super().__setstate__(state)
        if releases is not None:
            self._release = Release(self) if releases else None
            for number, group in enumerate(self.param_groups if releases else ()):
                self._release.hear(number, group)

    # -- the update -------------------------------------------------------------------------------

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_scale: torch.Tensor | None = None,
    ) -> Any:
        """One update of every parameter that has a gradient; returns what the closure does.

        closure: makes the loss anew, gradients on. grad_scale: one float32, which gradients are
        multiplied with as they are read, as to clip them without a pass over all of them.
        With `release` the updates are made already, but for gradients that were put there by hand.

        Throws ValueError, with nothing changed, on a setting, gradient or parameter that cannot be.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._release is not None and grad_scale is not None:
            self._fail("grad_scale comes too late with release=True: gradients are used as they arrive")
        self._update(grad_scale, lambda p: p.grad is not None)
        if self._release is not None:
            self._release.begin()
        return loss

    @torch.no_grad()
    def _update_one(self, number: int, i: int) -> None:
        """The update of one parameter of a group, by a gradient that is let go."""
        p = self.param_groups[number]["params"][i]
        self._update(None, lambda other: other is p, draw=False)
        p.grad = None

    @torch.compiler.disable
    def _update(
        self, grad_scale: torch.Tensor | None, wanted: Callable[[torch.Tensor], bool], draw: bool = True
    ) -> None:
        """Updates of the parameters that are wanted; `draw`: they are the last of a step."""
        if grad_scale is not None and (grad_scale.dtype != torch.float32 or grad_scale.numel() != 1):
            self._fail(
                f"grad_scale must be one float32, is {_name(grad_scale.dtype)} {tuple(grad_scale.shape)}"
            )
        work = []
        index = 0
        for number, group in enumerate(self.param_groups):
            mine = []
            for i, p in enumerate(group["params"]):
                if wanted(p):
                    mine.append((index, i, p))
                index += 1
            numbers = self._check_group(group, number, [p for _, _, p in mine])
            for _, i, p in mine:
                place = self._place(group, number, i)
                self._check_gradient(p, place)
                if self.state.get(p):
                    self._check_state(self.state[p], p, group, place)
                if isinstance(p, Carrier):
                    self._check_draw(p, place)
            work.append((group, numbers, mine))
        # Memory for all of them is there before any changes.
        new = {
            p: self._new_state(p, group) for group, _, mine in work for _, _, p in mine if not self.state.get(p)
        }
        for p, state in new.items():
            self.state[p] = state
        for group, numbers, mine in work:
            if mine:
                self._update_group(self._kind(group), group["seed"], numbers, mine, grad_scale)
        if draw:
            self._draw()

    def _update_group(
        self,
        kind: str,
        seed: int,
        numbers: dict[str, float],
        mine: list[tuple[int, int, torch.Tensor]],
        grad_scale: torch.Tensor | None,
    ) -> None:
        projected = [row for row in mine if isinstance(row[2], Carrier)]
        self._update_projected(kind, seed, numbers, projected, grad_scale)
        mine = [row for row in mine if not isinstance(row[2], Carrier)]
        states = [self.state[p] for _, _, p in mine]
        grads = []
        for _, _, p in mine:
            grad = p.grad
            if is_sharded(grad) and grad.placements != p.placements:
                grad = grad.redistribute(placements=p.placements)
            grads.append(local_of(grad))

        def held(name: str) -> list[torch.Tensor | None]:
            return [local_of(state.get(name)) for state in states]

        first, second = (*_MOMENTS[kind], None)[:2]
        steps = [int(state["step"]) + 1 for state in states]
        ops.update_parameters(
            kind,
            [local_of(p) for _, _, p in mine],
            grads,
            held(first),
            held(second) if second else [],
            held(first + _SCALES),
            held(second + _SCALES) if second else [],
            held("master"),
            steps,
            [index for index, _, _ in mine],
            [shard_of(p) for _, _, p in mine],
            seed,
            grad_scale,
            numbers,
        )
        for state, step in zip(states, steps):
            state["step"] = torch.tensor(step)  # another one: copies of the state keep theirs

    def _update_projected(
        self,
        kind: str,
        seed: int,
        numbers: dict[str, float],
        mine: list[tuple[int, int, Carrier]],
        grad_scale: torch.Tensor | None,
    ) -> None:
        """Updates of weights whose gradients are projected, through their carriers."""
        first, second = (*_MOMENTS[kind], None)[:2]
        for index, _, p in mine:
            state = self.state[p]
            step = int(state["step"]) + 1
            p.projected.update(
                kind, p.weight, p.grad, state.get(first), state.get(second), state.get(first + _SCALES),
                state.get(second + _SCALES) if second else None, state.get("master"), step, index, seed, grad_scale,
                numbers, p.transposed,
            )  # fmt: skip
            state["step"] = torch.tensor(step)

    def _draw(self) -> None:
        """Projections of the passes to come: those of the updates that there were."""
        found: dict[int, list[Carrier]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if isinstance(p, Carrier):
                    found.setdefault(id(p.projected), []).append(p)
        for carriers in found.values():
            projected = carriers[0].projected
            # What was frozen since does not go on.
            trained = [p for p in carriers if p.requires_grad] or carriers
            steps = {int(self.state[p]["step"]) for p in trained if self.state.get(p)}
            draw = min(steps) // projected.period() if steps and projected.period() > 0 else 0
            if projected.draw() != draw:
                projected.redraw(draw)
                for p in carriers:
                    p.redrawn = True
