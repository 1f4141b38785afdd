# SPDX-License-Identifier: Apache-2.0
"""apply() where no layer of a network is known: the whole forward pass in a scope of saved tensors."""
import copy
import gc
import pickle
import weakref

import _any_networks
from _device import DEVICE
from _threads import in_threads
from _training import text, train
from _whole_networks import network, same, step, t5
import pytest
import torch
from conftest import inputs, make
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import compact
import compact.hf


@pytest.mark.parametrize("made", [network, t5])
def test_bits_and_report(made):
    model, given = made()
    wanted = step(copy.deepcopy(model), given)
    assert compact.apply(model) is model and compact.report(model).saved is None
    assert "there was no step yet" in str(compact.report(model))
    for _ in range(3):
        assert same(step(model, given), wanted)
    report = compact.report(model)
    assert report.policy == compact.policy_text("exact") and report.name == "exact"
    assert 0 < report.held == report.saved.stored < 0.75 * report.saved.bytes
    assert "3 passes" in str(report) and " saved tensors rebuilt" in str(report)
    with pytest.raises(ValueError, match="has a policy already"):
        compact.apply(model)
    compact.remove(model)
    assert compact.report(model).policy is None and "forward" not in model.__dict__
    assert same(step(model, given), wanted)


def test_copies_have_their_own():
    model, given = network()
    wanted = step(copy.deepcopy(model), given)
    compact.apply(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(step(other, given), wanted)
        assert compact.report(other).saved and not compact.report(model).saved


def test_codes_hold_less():
    model, given = network()
    compact.apply(model, "gact-l1")
    step(model, given)
    saved = compact.report(model).saved
    assert saved.stored < 0.4 * saved.bytes


def test_where_layers_are_known_but_cannot_be_served():
    model, given = make("llama").double(), inputs("llama")
    wanted = step(copy.deepcopy(model), given)
    compact.apply(model)
    assert same(step(model, given), wanted)
    assert "its weights are float64" in str(compact.report(model))


def test_passes_outside_of_a_scope():
    model, given = network()
    wanted = step(copy.deepcopy(model), given)
    compact.apply(model)
    with torch.no_grad():
        model(*given)
    assert compact.report(model).saved is None
    with torch.autograd.graph.save_on_cpu():
        assert same(step(model, given), wanted)
    assert "1 by its own forward: other hooks of saved tensors are in force" in str(compact.report(model))


def test_two_threads():
    model, given = network()
    model.eval()  # threads draw from one generator

    def found():
        def work(_):
            return torch.autograd.grad(model(*given).square().mean(), list(model.parameters()))

        return in_threads(work, range(4))

    wanted = found()
    compact.apply(model)
    got = found()
    assert len(got) == 4 and all(same(got[i], wanted[i]) for i in range(4))


def test_trainer(tmp_path):
    found = []
    for policy in (None, "exact"):
        model = make("llama").double()
        if policy:
            compact.apply(model, policy)
        found.append(train(model, tmp_path / str(policy), text(), [compact.hf.Callback()] if policy else [])[1])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "policy,error",
    [
        ("recompute", "blocks are rebuilt of layers that compact knows"),
        ("compact", "`grad` lines need layers that compact knows"),
        ("nonsense", "no preset `nonsense`"),
    ],
)
def test_refusals(policy, error):
    model, _ = network()
    with pytest.raises(ValueError, match=error):
        compact.apply(model, policy)
    assert "forward" not in model.__dict__
    with pytest.raises(ValueError, match="what labels a Mixed takes is not known: give `batch` as a dictionary"):
        compact.apply(model, budget="1GiB", batch=2)
    with pytest.raises(ValueError, match="has no forward pass"):
        compact.apply(nn.ModuleList([model]))
    model.forward = model.forward
    with pytest.raises(ValueError, match="its own forward was replaced"):
        compact.apply(model)


def test_transforms_run_its_own_forward():
    model, given = network()
    model.eval()

    def gradient(parameters, x, condition):
        return torch.func.functional_call(model, parameters, (x[None], condition[None])).square().sum()

    def per_sample():
        parameters = dict(model.named_parameters())
        return list(torch.func.vmap(torch.func.grad(gradient), (None, 0, 0))(parameters, *given).values())

    def forward_derivative():
        return list(torch.func.jvp(lambda x: model(x, given[1]), (given[0],), (torch.ones_like(given[0]),)))

    wanted = per_sample(), forward_derivative()
    compact.apply(model)
    assert same(per_sample(), wanted[0]) and same(forward_derivative(), wanted[1])
    assert "a transform of torch.func is in force" in str(compact.report(model))


def test_is_freed_without_a_collection():
    model, given = network()
    compact.apply(model)
    step(model, given)
    alive = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_tensors_without_memory():
    model, given = network()
    with compact.saved_tensors("exact", model=model, lossless=True), torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(given[0], torch.ones_like(given[0]))
        model(x, given[1])
    with FakeTensorMode(allow_non_fake_inputs=True), compact.saved_tensors("exact", lossless=True):
        (torch.relu(model.last.weight) @ torch.ones(16, 64) > 0).sum()


def grads(model, loss_of):
    model.zero_grad()
    loss_of(model).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "qwen2_vl"])
def test_a_loss_in_chunks_where_it_is_asked_for(kind):
    model, loss_of = _any_networks.build(kind, "f32")
    wanted = grads(model, loss_of)
    compact.apply(model)
    assert all(map(torch.equal, grads(model, loss_of), wanted)) and "loss: the model's own" in str(compact.report(model))
    held = compact.report(model).held
    compact.remove(model)
    compact.apply(model, chunked_loss=True)
    got = grads(model, loss_of)
    assert "loss: in chunks, 1 passes" in str(compact.report(model)) and compact.report(model).held < held
    if kind == "mixtral" and DEVICE == "cpu":
        ids = torch.randint(10, 1000, (4, 128))
        given = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
        plan = compact.plan(copy.deepcopy(model), given, policies=(), budget="60%", optimizer=None, clip=False, chunked_loss=True)
        for _ in range(2):
            with compact.Meter() as meter:
                model.zero_grad()
                model(**given).loss.backward()
                model.zero_grad()
        real = meter.peak + plan["rows"][0]["weights"] + 2 * ids.nbytes
        compact.remove(model)
        assert "loss: in chunks" in str(compact.report(compact.apply(model, plan)))
        assert plan.policy == "exact" and abs(real - plan["rows"][-1]["peak"]) < 0.02 * real, (real, plan["rows"])
    assert all((a - b).norm() < 1e-5 * b.norm() for a, b in zip(got, wanted))
    compact.remove(model)
    assert all(map(torch.equal, grads(model, loss_of), wanted))
