# SPDX-License-Identifier: Apache-2.0
"""What optimizers of the package have in common: groups, the state that is loaded, and the call of the updates."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ._carriers import Carrier
from ._checks import draw_problem, gradient_problem, numbers_of, parameter_problem, settings_problem
from ._library import ops
from ._release import Release
from ._shards import is_sharded, local_of, shard_of
from ._state import Kept, layout, MOMENTS, name_of, new_state, SCALES, state_problem


class Optimizer(torch.optim.Optimizer):
    """What both have: groups, the state that is loaded, and the call of the C++ updates."""

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

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            self._fail(problem)

    def _check_group(
        self, group: dict[str, Any], number: int, params: Iterable[torch.Tensor]
    ) -> dict[str, float]:
        """Throws ValueError on settings and parameters that cannot be; the numbers of an update."""
        kind = self._kind(group)
        self._refuse(settings_problem(kind, group))
        numbers = numbers_of(group)
        try:
            ops.check_update_options(kind, numbers, group["moments"])
        except ValueError as error:
            self._fail(f"group {number}: {error}")
        checked = {id(p) for p in params}
        for i, p in enumerate(group["params"]):
            if id(p) in checked:
                self._refuse(parameter_problem(p, kind, group, self._place(group, number, i)))
        return numbers

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
            self._refuse(state_problem(of_parameter, p, self._kind(group), group, place))
            kept = {"step": torch.tensor(int(of_parameter["step"]), dtype=torch.int64)}
            if isinstance(p, Carrier):
                kept["projection"] = of_parameter["projection"].detach().cpu()
            for name in layout(p, self._kind(group), group):
                kept[name] = of_parameter[name].detach().to(p.device).contiguous()
            state[key] = Kept(kept)
        return {**state_dict, "state": state, "param_groups": groups}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "releases": self.releases}

    def __setstate__(self, state: dict[str, Any]) -> None:
        releases = state.pop("releases", None)  # there where it is a copy that is made
        for key, of_parameter in state["state"].items():
            if isinstance(of_parameter, Kept):
                state["state"][key] = of_parameter.state
        super().__setstate__(state)
        if releases is not None:
            self._release = Release(self) if releases else None
            for number, group in enumerate(self.param_groups if releases else ()):
                self._release.hear(number, group)

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
        self._update([row for row in self._rows() if row[3].grad is not None], range(len(self.param_groups)), grad_scale)
        self._draw()
        if self._release is not None:
            self._release.begin()
        return loss

    def _rows(self) -> list[tuple[int, int, int, torch.Tensor]]:
        """Every parameter: its group's number, its place among all and in the group, and itself."""
        places = [(number, i, p) for number, group in enumerate(self.param_groups) for i, p in enumerate(group["params"])]
        return [(number, index, i, p) for index, (number, i, p) in enumerate(places)]

    @torch.no_grad()
    def _update_one(self, number: int, i: int) -> None:
        """The update of one parameter of a group, by a gradient that is let go."""
        p = self.param_groups[number]["params"][i]
        before = sum(len(group["params"]) for group in self.param_groups[:number])
        self._update([(number, before + i, i, p)], [number], None)
        p.grad = None

    @torch.compiler.disable
    def _update(
        self, rows: list[tuple[int, int, int, torch.Tensor]], numbers: Iterable[int], grad_scale: torch.Tensor | None
    ) -> None:
        """Updates of some parameters, of the groups with these numbers."""
        if grad_scale is not None and (grad_scale.dtype != torch.float32 or grad_scale.numel() != 1):
            self._fail(
                f"grad_scale must be one float32, is {name_of(grad_scale.dtype)} {tuple(grad_scale.shape)}"
            )
        work = []
        for number in numbers:
            group = self.param_groups[number]
            mine = [(index, i, p) for of, index, i, p in rows if of == number]
            settings = self._check_group(group, number, [p for _, _, p in mine])
            for _, i, p in mine:
                place, state = self._place(group, number, i), self.state.get(p)
                self._refuse(gradient_problem(p, place))
                if state:
                    self._refuse(state_problem(state, p, self._kind(group), group, place))
                if isinstance(p, Carrier):
                    self._refuse(draw_problem(p, state, place))
            work.append((group, settings, mine))
        # Memory for all of them is there before any changes.
        new = {
            p: new_state(p, self._kind(group), group)
            for group, _, mine in work
            for _, _, p in mine
            if not self.state.get(p)
        }
        for p, state in new.items():
            self.state[p] = state
        for group, settings, mine in work:
            if mine:
                self._update_group(self._kind(group), group["seed"], settings, mine, grad_scale)

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

        first, second = (*MOMENTS[kind], None)[:2]
        steps = [int(state["step"]) + 1 for state in states]
        ops.update_parameters(
            kind,
            [local_of(p) for _, _, p in mine],
            grads,
            held(first),
            held(second) if second else [],
            held(first + SCALES),
            held(second + SCALES) if second else [],
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
        first, second = (*MOMENTS[kind], None)[:2]
        for index, _, p in mine:
            state = self.state[p]
            step = int(state["step"]) + 1
            p.projected.update(
                kind, p.weight, p.grad, state.get(first), state.get(second), state.get(first + SCALES),
                state.get(second + SCALES) if second else None, state.get("master"), step, index, seed, grad_scale,
                numbers, p.transposed,
            )  # fmt: skip
            state["step"] = torch.tensor(step)

    @torch.compiler.disable
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
