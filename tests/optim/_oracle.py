# SPDX-License-Identifier: Apache-2.0
"""Optimizers written independently, to compare the C++ ones with.

  _oracle.py subspace FOLDER   subspace AdamW and Muon in NumPy, f64, P read as matrices
  _oracle.py adamw FOLDER      torch.optim.AdamW on the same gradients

FOLDER holds one folder a case; tests/optim/oracle.h says how a case is written. Exit status 0:
every case agrees within its `tolerance`.
"""
import pathlib
import sys

import numpy as np


def read_case(folder):
    numbers, tensors = {}, {}
    for line in (folder / "manifest").read_text().splitlines():
        kind, name, *rest = line.split()
        if kind == "number":
            numbers[name] = float(rest[0])
        else:
            data = np.fromfile(folder / f"{name}.f64")
            tensors[name] = data.reshape([int(size) for size in rest])
    return numbers, tensors


def orthogonalize(x):
    x = x / (np.linalg.norm(x) + 1e-7)
    wide = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.T


class Model:
    """The network of tests/optim/toy.h with exact gradients of the weights."""

    def __init__(self, tensors):
        self.w = {name: tensors[f"{name}.first"].copy() for name in "abgv"}

    def gradients(self, batches):
        total = {name: np.zeros_like(w) for name, w in self.w.items()}
        tokens = sum(len(x) for x, _ in batches)
        a, b, g, v = (self.w[name] for name in "abgv")
        for x, target in batches:
            h = x @ a.T
            k = h @ b.T
            error = ((k * g) @ v.T - target) / tokens
            total["v"] += error.T @ (k * g)
            total["g"] += np.sum((error @ v) * k, axis=0)
            inner = (error @ v) * g
            total["b"] += inner.T @ h
            total["a"] += (inner @ b).T @ x
        return total


class Subspace:
    """Moments of one matrix kept in the coordinates of P, one P a group of rows."""

    def __init__(self, numbers, tensors):
        self.numbers, self.tensors = numbers, tensors
        self.draw = 0
        parts = [int(numbers[f"part.{i}"]) for i in range(int(numbers["parts"]))]
        self.parts = np.split(np.arange(sum(parts)), np.cumsum(parts)[:-1])
        groups = [np.arange(sum(parts))] if numbers["share"] else self.parts
        self.group_of = {row: i for i, rows in enumerate(groups) for row in rows}
        self.groups = groups

    def matrix(self, group, draw):
        return self.tensors[f"p.{draw}.{group}"]

    def down(self, gradient):
        return np.vstack([gradient[rows] @ self.matrix(i, self.draw)
                          for i, rows in enumerate(self.groups)])

    def up(self, update):
        return np.vstack([update[rows] @ self.matrix(i, self.draw).T
                          for i, rows in enumerate(self.groups)])

    def refresh(self, state):
        for i, rows in enumerate(self.groups):
            old, new = self.matrix(i, self.draw), self.matrix(i, self.draw + 1)
            n, r = old.shape
            if self.numbers["carry"]:
                state["m"][rows] = state["m"][rows] @ (old.T @ new) * r / n
            if self.numbers["carry_second"] and "v" in state:
                carried = state["v"][rows] @ (old.T @ new) ** 2
                mean = carried.mean(axis=1, keepdims=True)
                state["v"][rows] = carried * state["v"][rows].mean(axis=1, keepdims=True) / mean
        self.draw += 1


def direction(state, gradient, step, numbers, muon, parts):
    if muon:
        mu = numbers["momentum"]
        state["m"] = mu * state["m"] + gradient
        wanted = gradient + mu * state["m"] if numbers["nesterov"] else state["m"]
        return np.vstack([orthogonalize(wanted[rows])
                          * 0.2 * np.sqrt(max(len(rows), wanted.shape[1])) for rows in parts])
    b1, b2 = numbers["beta1"], numbers["beta2"]
    state["m"] = b1 * state["m"] + (1 - b1) * gradient
    state["v"] = b2 * state["v"] + (1 - b2) * gradient**2
    first, second = state["m"] / (1 - b1**step), state["v"] / (1 - b2**step)
    return first / (np.sqrt(second) + numbers["eps"])


def subspace(numbers, tensors):
    model, space = Model(tensors), Subspace(numbers, tensors)
    projected, muon = bool(numbers["projected"]), bool(numbers["muon"])
    state, clipped, worst = {}, 0, 0.0
    for step in range(1, int(numbers["steps"]) + 1):
        batches = [(tensors[f"x.{step - 1}.{i}"], tensors[f"t.{step - 1}.{i}"]) for i in range(2)]
        gradients = model.gradients(batches)
        if projected:
            gradients["a"] = space.down(gradients["a"])
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        worst = max(worst, abs(norm / tensors["norms"][step - 1] - 1))
        factor = min(1.0, numbers["max_norm"] / (norm + 1e-6))
        clipped += factor < 1
        for name, gradient in gradients.items():
            gradient = gradient * factor
            own = state.setdefault(name, {key: np.zeros_like(gradient) for key in
                                          (("m",) if muon and name in "ab" else ("m", "v"))})
            parts = space.parts if name == "a" else [np.arange(len(gradient))]
            rate = tensors["rates"][step - 1]
            rate *= {"a": numbers["factor"], "b": 0.5 * numbers["factor"], "g": 1, "v": 1}[name]
            move = direction(own, gradient, step, numbers, muon and name in "ab", parts)
            if name == "a" and projected:
                move = numbers["scale"] * space.up(move)
            decay = 1 - rate * numbers["weight_decay"] if name != "g" else 1
            model.w[name] = decay * model.w[name] - rate * move
        if projected and step % int(numbers["period"]) == 0:
            space.refresh(state["a"])
    norms = np.sort(tensors["norms"])
    assert 0 < clipped < numbers["steps"], f"clipping must come and go, came {clipped} times, norms {norms}"
    found = {f"{name}.weight": (model.w[name] - tensors[f"{name}.first"],
                                tensors[f"{name}.last"] - tensors[f"{name}.first"])
             for name in model.w}
    for name, own in state.items():
        found |= {f"{name}.{key}": (value, tensors[f"{name}.{key}"]) for key, value in own.items()}
    return worst, found


def adamw(numbers, tensors):
    import torch
    weight = torch.nn.Parameter(torch.tensor(tensors["first"]))
    optimizer = torch.optim.AdamW([weight], betas=(numbers["beta1"], numbers["beta2"]),
                                  eps=numbers["eps"], weight_decay=numbers["weight_decay"])
    for gradient, rate in zip(tensors["gradients"], tensors["rates"]):
        weight.grad = torch.tensor(gradient)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    state = optimizer.state[weight]
    return 0.0, {"weight": (weight.detach().numpy() - tensors["first"],
                            tensors["last"] - tensors["first"]),
                 "m": (state["exp_avg"].numpy(), tensors["m"]),
                 "v": (state["exp_avg_sq"].numpy(), tensors["v"])}


def main():
    mode, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    failures = cases = 0
    for case in sorted(folder.iterdir()):
        numbers, tensors = read_case(case)
        worst, found = {"subspace": subspace, "adamw": adamw}[mode](numbers, tensors)
        errors = {name: np.linalg.norm(ours - theirs) / np.linalg.norm(ours)
                  for name, (ours, theirs) in found.items()}
        errors["norm"] = worst
        name = max(errors, key=errors.get)
        good = all(error <= numbers["tolerance"] for error in errors.values())
        print(f"{case.name}: largest relative error {errors[name]:.2e} ({name})"
              f"{'' if good else ' TOO LARGE'}")
        cases += 1
        failures += not good
    return 1 if failures or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
