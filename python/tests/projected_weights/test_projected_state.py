# SPDX-License-Identifier: Apache-2.0
"""Projected gradients: which draw a gradient and a state are of, and runs that go on from a checkpoint."""
import copy
import io

from _projecting import carriers, LLAMA, MAKERS, PERIOD, run
from conftest import inputs, make
import pytest
import torch

import compact


@pytest.mark.parametrize("optimizer", MAKERS)
def test_going_on_from_a_checkpoint(optimizer):
    whole = compact.apply(make("llama"), LLAMA)
    run_of = MAKERS[optimizer](whole)
    wanted = run(whole, run_of, range(3 * PERIOD))
    first = compact.apply(make("llama"), LLAMA)
    optimizer_of = MAKERS[optimizer](first)
    losses = run(first, optimizer_of, range(PERIOD + 2))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer_of.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second = make("llama", seed=1)
    second.load_state_dict(saved["model"])
    compact.apply(second, LLAMA)
    going_on = MAKERS[optimizer](second)
    going_on.load_state_dict(saved["optimizer"])
    assert losses + run(second, going_on, range(PERIOD + 2, 3 * PERIOD)) == wanted
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), second.state_dict().values()))


STALE = "has a gradient of a projection before the one in force"


def test_gradients_of_the_projection_before():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(PERIOD - 1))
    model(**given).loss.backward()
    optimizer.step()
    with pytest.raises(ValueError, match=STALE):
        optimizer.step()
    loss = model(**given).loss
    with pytest.raises(RuntimeError, match=STALE):
        loss.backward()
    optimizer.zero_grad()
    model(**given).loss.backward()
    optimizer.step()


def test_a_state_that_is_loaded_behind_the_backward_pass():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(PERIOD))
    state = copy.deepcopy(optimizer.state_dict())
    again = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(again.parameters(), lr=1e-2)
    again(**given).loss.backward()
    optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=STALE):
        optimizer.step()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_cleared_behind_the_forward_pass(to_none):
    """As closures and Lightning do."""
    found = []
    for behind in (False, True):
        model = compact.apply(make("llama"), LLAMA)
        optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(2 * PERIOD + 1):
            if not behind:
                optimizer.zero_grad(to_none)
            loss = model(**inputs("llama")).loss
            if behind:
                optimizer.zero_grad(to_none)
            loss.backward()
            optimizer.step()
        found.append(loss.item())
    assert found[0] == found[1]


@pytest.mark.parametrize("flat", [False, True])
def test_checkpoints_of_torch(flat):
    from torch.distributed.checkpoint import state_dict as of

    options, found = of.StateDictOptions(flatten_optimizer_state_dict=flat), []
    for resumed in (False, True):
        model = compact.apply(make("llama"), LLAMA)
        optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
        run(model, optimizer, range(PERIOD + 1))
        if resumed:
            saved = copy.deepcopy(of.get_state_dict(model, optimizer, options=options))
            model = compact.apply(make("llama", seed=1), LLAMA)
            optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
            of.set_state_dict(model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
        run(model, optimizer, range(PERIOD))
        found.append(model.state_dict())
    assert all(torch.equal(t, found[1][n]) for n, t in found[0].items())


def test_another_way_to_write_the_same_projection():
    model = compact.apply(make("llama"), "grad layers.*.mlp.down = project:rank=0.5\n")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(1))
    again = compact.apply(make("llama"), "grad layers.*.mlp.down = project:rank=86,period=200,type=srht,lr_scale=2\n")
    compact.optim.AdamW(again.parameters(), lr=1e-2).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("other", [{"seed": 5}, {"policy": LLAMA.replace("period=4", "period=5")}])
def test_a_state_of_other_projections(other):
    model = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(2))
    second = compact.apply(make("llama"), **{"policy": LLAMA, **other})
    with pytest.raises(ValueError, match="apply the policy that it was trained with, with the same seed"):
        compact.optim.AdamW(second.parameters(), lr=1e-2).load_state_dict(optimizer.state_dict())


def test_a_state_that_is_not_loaded():
    model = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    model(**inputs("llama")).loss.backward()
    before = [t.clone() for t in model.state_dict().values()]
    list(carriers(model).values())[-1].projected.redraw(3)
    with pytest.raises(ValueError, match="has projection 3, and its next update is of number 0"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values())), "nothing was changed"
