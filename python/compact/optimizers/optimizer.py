# SPDX-License-Identifier: Apache-2.0
"""The base of the package's optimizers: groups, loading of state, and the calls of updates in C++."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..base.library import ops
from ..base.policy import moments_of
from ..base.shards import is_sharded, like_sharded, local_of, shard_of
from ..base.type_names import name_of
from ..projected_weights.carriers import Carrier
from .checks import draw_problem, gradient_problem, numbers_of, parameter_problem, release_problem, settings_problem
from .release import owner_of, Release
from .state import Kept, layout, MOMENTS, new_state, placed, SCALES, state_problem

Row = tuple[int, int, torch.Tensor]  # place of a parameter among all, place in its group, and the parameter


def _trained(group: dict[str, Any]) -> list[tuple[int, torch.Tensor]]:
    return [(i, p) for i, p in enumerate(group["params"]) if p.requires_grad]


class Optimizer(torch.optim.Optimizer):
    """A torch.optim.Optimizer whose updates the library makes."""

    takes_carriers = True  # carriers of projected gradients, which no other optimizer can update
    _release: Release | None = None
    _folder = ""  # of files of moments with "+disk"
    _complete = False  # the constructor has added all of its groups
    usual_moments: str  # how they are held where neither the constructor nor the model's policy says it

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], release: bool, offload_folder: str | os.PathLike[str] | None = None):
        if offload_folder is not None:
            self._folder = os.path.abspath(os.fspath(offload_folder))
        if not isinstance(release, bool):
            self._fail(f"release must be of type bool, is {release!r}")
        if not isinstance(params, Iterable):
            self._fail(f"params must be a module, parameters or groups of them, is {params!r}")
        if release:
            self._release = Release(self)
        super().__init__(params, defaults)
        self._check_groups()
        self._complete = True
        self._begin(self.param_groups)

    def _moments(self, given: str | None, params: Any) -> str:
        """How moments are held, of what the constructor was given."""
        if given is not None:
            return given
        return (isinstance(params, nn.Module) and moments_of(params)) or self.usual_moments

    @property
    def releases(self) -> bool:
        """Whether updates are made inside the backward pass."""
        return self._release is not None

    def _check_groups(self) -> None:
        """Throws ValueError where this optimizer is useless for all groups together."""

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
        try:
            for group in self._parts(param_group):
                super().add_param_group(group)
                number = len(self.param_groups) - 1
                self._check_group(group, number, _trained(group))
                for i, p in enumerate(group["params"]) if self.releases else ():
                    self._refuse(release_problem(p, self._place(group, number, i)))
        except BaseException:
            del self.param_groups[before:]
            raise
        if self._complete:
            self._begin(self.param_groups[before:])

    def _parts(self, param_group: dict[str, Any]) -> list[dict[str, Any]]:
        """The groups that are made of one."""
        return [param_group]

    def _begin(self, groups: list[dict[str, Any]]) -> None:
        for group in groups if self._release is not None else ():
            self._release.take(group["params"])
        self._draw()

    def _places(self) -> Iterator[tuple[int, int, int, torch.Tensor]]:
        """All parameters: group, place among all, place in the group, and the parameter itself."""
        index = 0
        for number, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                yield number, index, i, p
                index += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim.Optimizer's. Throws RuntimeError where gradients were used already (release=True)."""
        if self._release is not None:
            self._release.check_given_up()
        super().zero_grad(set_to_none)

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            self._fail(problem)

    def _check_group(self, group: dict[str, Any], number: int, params: Iterable[tuple[int, torch.Tensor]]) -> dict[str, float]:
        """Throws ValueError on settings that cannot be, and on some of its parameters; the numbers of an update."""
        kind = self._kind(group)
        self._refuse(settings_problem(kind, group))
        if group["moments"].endswith("+disk") and not self._folder:
            self._fail('moments with "+disk" need offload_folder, a folder on a disk')
        numbers = numbers_of(group)
        try:
            ops.check_update_options(kind, numbers)
        except ValueError as error:
            self._fail(f"group {number}: {error}")
        for i, p in params:
            self._refuse(parameter_problem(p, kind, group, self._place(group, number, i)))
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """As torch.optim.Optimizer's. Throws RuntimeError where a disk lost moments of "+disk"."""
        if self._folder:
            ops.check_disks()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch.optim.Optimizer's, but that every tensor comes back bit for bit, in its own type.

        What the groups were set to comes from `state_dict`. One of torch.optim.AdamW is taken, too,
        where moments are "f32". With `release` a step that was begun ends. Throws ValueError, with nothing changed, on state that is not this
        optimizer's for these parameters.
        """
        # Torch casts floating-point state to the parameter's type; it leaves objects of other classes, as Kept.
        hook = self.register_load_state_dict_pre_hook(type(self)._with_kept_types)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        self._draw()
        if self._release is not None:
            self._release.end_step()

    def _with_kept_types(self, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        saved, here = state_dict["param_groups"], self.param_groups
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in here]:
            return None  # torch raises the error
        groups, places, outside = [], {}, set()
        for number, (old, now) in enumerate(zip(saved, here)):
            for key in ("amsgrad", "maximize"):
                if old.get(key):
                    self._fail(f"the state of group {number} is of {key}=True, which there is not here")
            if old.get("decoupled_weight_decay") is False and old.get("weight_decay"):
                self._fail(f"the state of group {number} is of weight decay as part of gradients, which there is not here")
            of_group = {k: v for k, v in now.items() if k != "param_names"} | old
            # Types come from the state, places do not.
            if "+" in str(of_group["moments"]):
                outside.update(old["params"])
            of_group["moments"] = str(of_group["moments"]).partition("+")[0] + "".join(now["moments"].partition("+")[1:])
            groups.append(of_group)
            as_here = of_group | {"params": now["params"]}
            self._check_group(as_here, number, _trained(now))
            for i, (key, p) in enumerate(zip(old["params"], now["params"])):
                places[key] = (p, as_here, self._place(as_here, number, i))
        state = {}
        for key, of_parameter in state_dict["state"].items():
            if key not in places or not of_parameter:
                state[key] = of_parameter
                continue
            p, group, place = places[key]
            self._refuse(state_problem(of_parameter, p, self._kind(group), group, place))
            kept = {"step": torch.tensor(int(of_parameter["step"]), dtype=torch.int64, device="cpu")}
            if isinstance(p, Carrier):
                kept["projection"] = of_parameter["projection"].detach().cpu()
            for name in layout(p, self._kind(group), group):
                t = self._placed(of_parameter[name].detach().to(p.device).contiguous(), group)
                # Elsewhere, as another optimizer's that still has it.
                kept[name] = t.clone() if key in outside and "+" not in group["moments"] else t
            state[key] = Kept(kept)
        return {**state_dict, "state": state, "param_groups": groups}

    def _placed(self, t: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        if not is_sharded(t):
            return placed(t, group["moments"], self._folder)
        return like_sharded(placed(local_of(t), group["moments"], self._folder), t, tuple(t.shape))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "releases": self.releases, "folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        releases = state.pop("releases", False)  # copies and pickles have it; torch's load_state_dict() calls this without it
        for key, of_parameter in state["state"].items():
            if isinstance(of_parameter, Kept):
                state["state"][key] = of_parameter.state
        folder = state.pop("folder", None)
        super().__setstate__(state)
        self._complete = True
        if folder is not None:  # a copy, or from a pickle, whose tensors are in memory
            self._folder = folder
            for group in self.param_groups:
                for p in group["params"]:
                    own = self.state.get(p, {})
                    own.update({name: self._placed(own[name], group) for name in own.keys() & layout(p, self._kind(group), group).keys()})
        if releases:
            self._release = self._release or Release(self)
            for group in self.param_groups:
                self._release.take([p for p in group["params"] if owner_of(p) is None])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, grad_scale: torch.Tensor | None = None) -> Any:
        """One update of every parameter that has a gradient; returns what the closure does.

        closure: makes the loss again, gradients on. grad_scale: one float32, which gradients are
        multiplied with as they are read, as to clip them without a pass over all of them.
        With `release` the updates are made already, but for gradients that were put there by hand.

        Throws ValueError, with nothing changed, on a setting, gradient or parameter that cannot be.
        """
        if self._release is not None and grad_scale is not None:
            self._fail("grad_scale comes too late with release=True: gradients are used as they arrive")
        if grad_scale is not None and not isinstance(grad_scale, torch.Tensor):
            self._fail(f"grad_scale must be a tensor of one float32, is {grad_scale!r}")
        if grad_scale is not None and (grad_scale.dtype != torch.float32 or grad_scale.numel() != 1):
            self._fail(f"grad_scale must be one float32, is {name_of(grad_scale.dtype)} {tuple(grad_scale.shape)}")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._release is not None:
            self._release.check_step(self.param_groups)
        rows: dict[int, list[Row]] = {number: [] for number in range(len(self.param_groups))}
        for number, index, i, p in self._places():
            if p.grad is not None:
                rows[number].append((index, i, p))
        self._update(rows, grad_scale)
        if self._release is not None:
            self._count_all()
            self._release.end_step()
        self._draw()
        return loss

    @torch.no_grad()
    def _update_one(self, number: int, index: int, i: int) -> dict[str, float]:
        """Updates one parameter of a group; returns the numbers of the update."""
        return self._update({number: [(index, i, self.param_groups[number]["params"][i])]}, None)[number]

    @torch.compiler.disable
    def _update(self, rows: dict[int, list[Row]], grad_scale: torch.Tensor | None) -> dict[int, dict[str, float]]:
        """Updates some parameters, by the number of their group; returns the numbers of these updates."""
        numbers = {}
        for number, mine in rows.items():
            group = self.param_groups[number]
            numbers[number] = self._check_group(group, number, [(i, p) for _, i, p in mine])
            for _, i, p in mine:
                place, state = self._place(group, number, i), self.state.get(p)
                self._refuse(gradient_problem(p, place))
                if state:
                    self._refuse(state_problem(state, p, self._kind(group), group, place))
                if isinstance(p, Carrier):
                    self._refuse(draw_problem(p, state, place))
        # Memory for all state is allocated before anything changes.
        new = {
            p: new_state(p, self._kind(self.param_groups[number]), self.param_groups[number], self._folder)
            for number, mine in rows.items()
            for _, _, p in mine
            if not self.state.get(p)
        }
        for p, state in new.items():
            self.state[p] = state
        for number, mine in rows.items():
            group = self.param_groups[number]
            if mine:
                self._update_group(self._kind(group), group["seed"], numbers[number], mine, grad_scale)
        return numbers

    def _update_group(self, kind: str, seed: int, numbers: dict[str, float], mine: list[Row], grad_scale: torch.Tensor | None) -> None:
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
            state["step"] = torch.tensor(step, device="cpu")  # a new tensor: copies of the state keep the old one

    def _update_projected(
        self, kind: str, seed: int, numbers: dict[str, float], mine: list[tuple[int, int, Carrier]], grad_scale: torch.Tensor | None
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
            state["step"] = torch.tensor(step, device="cpu")

    def _carriers(self) -> list[list[Carrier]]:
        """Carriers by their projection."""
        found: dict[int, list[Carrier]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if isinstance(p, Carrier):
                    found.setdefault(id(p.projected), []).append(p)
        return list(found.values())

    def _count_all(self) -> None:
        """Counts updates that a broken pass left out: all carriers of one projection have the same number of updates."""
        group_of = {p: self.param_groups[number] for number, _, _, p in self._places()}
        for carriers in self._carriers():
            trained = [p for p in carriers if p.requires_grad]
            steps = [int(self.state[p]["step"]) if self.state.get(p) else 0 for p in trained]
            for p, step in zip(trained, steps):
                if step < max(steps):
                    if not self.state.get(p):
                        self.state[p] = new_state(p, self._kind(group_of[p]), group_of[p], self._folder)
                    self.state[p]["step"] = torch.tensor(max(steps), device="cpu")

    @torch.compiler.disable
    def _draw(self) -> None:
        """Draws the projections of the next pass, which follow from the number of updates."""
        for carriers in self._carriers():
            projected = carriers[0].projected
            # Frozen carriers do not count on.
            trained = [p for p in carriers if p.requires_grad] or carriers
            steps = {int(self.state[p]["step"]) for p in trained if self.state.get(p)}
            draw = min(steps) // projected.period() if steps and projected.period() > 0 else 0
            if projected.draw() != draw:
                projected.redraw(draw)
                for p in carriers:
                    p.redrawn = True
