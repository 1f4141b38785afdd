# SPDX-License-Identifier: Apache-2.0
"""Uses of projected weights outside of their layers: an error where a gradient would be lost, and nowhere else."""
import copy
import io

from _projecting import carriers, LLAMA, MAKERS, run
from conftest import inputs, make
import pytest
import torch
from torch.nn import functional
from torch.nn.utils import parametrizations

import compact

LOST = "use outside of its layer"
USES = {
    "l2": lambda p: p.pow(2).sum(),
    "l1": lambda p: (p - 1).abs().sum(),
    "norm": torch.norm,
    "clone": lambda p: p.clone().sum(),
    "a view": lambda p: p.T.mul(2).sum(),
    "rows": lambda p: sum(row.sum() for row in p),
    "an index": lambda p: p[0].sum(),
    "a tied product": lambda p: functional.linear(torch.ones(1, p.shape[1]), p).sum(),
    "a list": lambda p: torch.cat([p.flatten(), p.flatten()]).sum(),
    "einsum": lambda p: torch.einsum("ij->", p),
    "into another": lambda p: torch.zeros(p.shape).copy_(p).sum(),
}


def applied():
    model = make("llama")
    compact.apply(model, LLAMA)
    return model, next(iter(carriers(model).values()))


@pytest.mark.parametrize("use", USES)
def test_what_would_lose_a_gradient(use):
    model, carrier = applied()
    for p in (carrier.weight, carrier):
        loss = model(**inputs("llama")).loss + USES[use](p)
        with pytest.raises(RuntimeError, match=LOST):
            loss.backward()
    carrier.requires_grad_(False)  # then nobody trains it
    (model(**inputs("llama")).loss + USES[use](carrier.weight) + USES[use](carrier)).backward()
    compact.remove(model)
    carrier.weight.requires_grad_(True)
    model.zero_grad()
    USES[use](carrier.weight).backward()
    assert type(carrier.weight) is torch.nn.Parameter and carrier.weight.grad.shape == carrier.weight.shape


@pytest.mark.parametrize("which", [lambda p: True, lambda p: p.requires_grad])
def test_a_penalty_of_all_parameters(which):
    model, _ = applied()
    for again in (model, copy.deepcopy(model)):
        loss = again(**inputs("llama")).loss + 1e-3 * sum(p.pow(2).sum() for p in again.parameters() if which(p))
        with pytest.raises(RuntimeError, match=LOST):
            loss.backward()


@pytest.mark.parametrize("name", MAKERS)
def test_ordinary_uses(name):
    """Steps among them are those without."""
    model, carrier = applied()
    optimizer = MAKERS[name](model)
    weight = carrier.weight
    wanted = run(copy_of := copy.deepcopy(model), MAKERS[name](copy_of), range(3))
    losses = []
    for step in range(3):
        losses += run(model, optimizer, [step])
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            norms = [p.norm().item() for p in model.parameters()]
            weight.mul_(2).mul_(0.5)
        average = {n: p.detach().clone() for n, p in model.named_parameters()}
        average = {n: average[n].lerp_(p.data, 0.1) for n, p in model.named_parameters()}
        fisher = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        assert not any(t.requires_grad for t in (*fisher.values(), *average.values())) and len(norms) == len(average) and total == 0
        weight.data.mul_(2)
        weight.data.mul_(0.5)
        assert weight.grad is None and not weight.requires_grad and weight.is_leaf and repr(weight).startswith("Parameter")
        weight.norm().item()  # written to a log, gradients on
    assert losses == wanted
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = make("llama", seed=1)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert all(torch.equal(p, again.get_parameter(n)) for n, p in compact.remove(model).named_parameters())


def test_gradients_of_others_can_be_asked_for():
    model, carrier = applied()
    ids = inputs("llama")
    embedding = model.get_input_embeddings().weight
    loss = model(**ids).loss + carrier.weight.pow(2).sum()
    (gradient,) = torch.autograd.grad(loss, [embedding], retain_graph=True)
    assert gradient.any()
    grads = torch.autograd.grad(model(**ids).loss, [carrier, embedding])
    assert all(g.any() and not g.requires_grad for g in grads)


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_weight_made_of_others(norm):
    model, _ = applied()
    with pytest.raises(RuntimeError):
        norm(model.model.layers[0].mlp.down_proj)
        model(**inputs("llama")).loss.backward()
