# SPDX-License-Identifier: Apache-2.0
"""Projected gradients: carriers take G P, and updates go through P^T."""
import os
import pathlib
import subprocess
import sys

from _device import cpu_only, DEVICE
from _projecting import carriers, LLAMA, PERIOD, policy_of, projection, run
from conftest import error, inputs, make, MODELS
import pytest
import torch
from torch import nn

import compact
from compact.projected_weights.carriers import Carrier


@pytest.mark.parametrize("name", [*MODELS])
def test_gradients_are_those_of_weights_projected(name):
    own, model, given = make(name), make(name), inputs(name)
    loss, wanted = own(**given).loss, dict(own.named_parameters())
    loss.backward()
    compact.apply(model, policy_of(name))
    assert list(model.state_dict()) == list(own.state_dict())
    got = model(**given).loss
    got.backward()
    assert abs(got.item() - loss.item()) < 1e-5
    found = carriers(model)
    assert len(found) >= 3 * len(compact.report(model).layers) - 2
    for path, c in found.items():
        gradient = wanted[path + ".weight"].grad
        gradient = gradient.t() if c.transposed else gradient
        assert error({"": c.grad}, {"": gradient @ projection(c)}) < 1e-4, path
        assert not c.weight.requires_grad and c.weight.grad is None
    for path, p in model.named_parameters():
        if p.requires_grad and not isinstance(p, Carrier):
            # Keys' biases have gradients that are 0 but for rounding.
            assert (p.grad - wanted[path].grad).norm() < 1e-4 * wanted[path].grad.norm() + 1e-8, path


def test_projections_are_right_on_average():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, LLAMA)
    c = carriers(model)["model.layers.0.mlp.down_proj"]
    gradient = dict(make("llama").named_parameters())
    own = make("llama")
    own(**given).loss.backward()
    gradient = own.model.layers[0].mlp.down_proj.weight.grad
    draws, n, r = 400, c.weight.shape[1], c.shape[1]
    mean = torch.zeros_like(gradient)
    for draw in range(draws):
        c.projected.redraw(draw)
        p = projection(c)
        mean += gradient @ p @ p.T / draws
    # The mean of |G P P^T - G|^2 is |G|^2 (n / r - 1) at most; 5 deviations to spare.
    assert error({"": mean}, {"": gradient}) < 5 * (n / r / draws) ** 0.5
    assert error({"": mean}, {"": gradient}) > 0


def stepped(c, moments, lr, step):
    """The step of torch's own AdamW for a carrier's gradient, from zero."""
    p = nn.Parameter(torch.zeros(c.shape))
    p.grad = c.grad.clone()
    optimizer = torch.optim.AdamW([p], lr=lr, weight_decay=0)
    if step > 1:
        optimizer.state[p] = {"step": torch.tensor(float(step - 1)), **{k: v.clone() for k, v in moments.items()}}
    optimizer.step()
    return p.detach(), {k: optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_updates(name):
    model, given = make(name), inputs(name)
    compact.apply(model, policy_of(name))
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    path, c = next((n, p) for n, p in carriers(model).items() if "mlp" in n)
    moments = {}
    for step in range(1, PERIOD + 1):
        optimizer.zero_grad()
        model(**given).loss.backward()
        before, p_old = c.weight.detach().clone(), projection(c)
        update, moments = stepped(c, moments, 1e-2, step)
        optimizer.step()
        through = update @ p_old.T
        wanted = before * (1 - 1e-2 * 0.1) + (through.T if c.transposed else through)
        assert error({"": c.weight.detach()}, {"": wanted}) < 1e-5, step
        assert c.is_zero() and c.projected.draw() == step // PERIOD
    # Moments follow into the next projection: exactly, were both bases orthonormal.
    overlap = p_old.T @ projection(c)
    rank, width = overlap.shape[0], p_old.shape[0]
    state = optimizer.state[c]
    assert error({"": state["exp_avg"]}, {"": moments["exp_avg"] @ overlap * (rank / width)}) < 1e-4
    assert bool((state["exp_avg_sq"] >= 0).all()) and int(state["step"]) == PERIOD


@pytest.mark.parametrize("dtype", ["bf16", "autocast", "masters"])
def test_types(dtype):
    model = make("llama") if dtype == "autocast" else make("llama").bfloat16()
    compact.apply(model, LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2, master_weights=dtype == "masters")
    with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "autocast"):
        losses = run(model, optimizer, [0] * 12)
    assert losses[-1] < losses[0] - 0.5
    assert all(c.is_zero() and c.dtype == c.weight.dtype for c in carriers(model).values())
    if dtype == "masters":
        c = next(iter(carriers(model).values()))
        assert torch.equal(optimizer.state[c]["master"].bfloat16(), c.weight)


def test_bytes():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-3)
    model(**given).loss.backward()
    optimizer.step()
    for c in carriers(model).values():
        state = optimizer.state[c]
        assert c.untyped_storage().nbytes() == 4 and c.grad.nbytes == 4 * c.numel()
        assert state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes == 8 * c.numel()
        assert c.numel() in (c.weight.numel() // 4, c.weight.numel() // 2)
    rows = compact.plan(make("llama"), given, policies=("exact", LLAMA), optimizer=compact.optim.AdamW)["rows"]
    assert rows[1]["optimizer"] == sum(t.nbytes for s in optimizer.state.values() for k, t in s.items() if k not in ("step", "projection"))
    assert rows[1]["weights"] < rows[0]["weights"] + 200 and rows[1]["peak"] < rows[0]["peak"]


@cpu_only  # by gloo
def test_two_processes():
    script = pathlib.Path(__file__).with_name("_projected_ranks.py")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=localhost:0", str(script), LLAMA],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_plans_need_the_optimizer():
    with pytest.raises(ValueError, match="projected gradients need compact.optim"):
        compact.plan(make("llama"), (2, 32), policies=(LLAMA,))
