# SPDX-License-Identifier: Apache-2.0
"""Settings, parameters and gradients that optimizers do not take."""
import math

from _optimizing import give_gradients, make, Net, parameters
import pytest
import torch
from torch import nn

import compact

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"lr": -1.0}, "learning rate must not be negative, is -1"),
        ({"lr": math.nan}, "learning rate"),
        ({"lr": "fast"}, "lr must be a number, is 'fast'"),
        ({"betas": (0.9, 1.0)}, r"beta2 must be in \[0, 1\), is 1"),
        ({"betas": 0.9}, "betas must be two numbers, are 0.9"),
        ({"eps": 0.0}, "eps must be positive, is 0"),
        ({"weight_decay": -0.1}, "weight decay must not be negative, is -0.1"),
        ({"moments": "f16"}, "moments must be one of f32, bf16, f8, alone or with .*, is 'f16'"),
        ({"moments": 8}, "moments must be one of f32, bf16, f8, alone or with .*, is 8"),
        ({"master_weights": 1}, "master_weights must be of type bool, is 1"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 0.5}, "seed must be of type int, is 0.5"),
    ],
)
def test_settings_out_of_range(settings, words):
    for kind in ("AdamW", "Muon"):
        with pytest.raises(ValueError, match=f"compact.optim.{kind}: .*{words}"):
            make(kind, Net(), **settings)
    p, q = parameters((3, 3), (4, 4))
    optimizer = compact.optim.AdamW([p])
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [q]} | settings)
    assert len(optimizer.param_groups) == 1
    give_gradients([p], 0)
    optimizer.param_groups[0].update(settings)
    before = p.detach().clone()
    with pytest.raises(ValueError, match=words):
        optimizer.step()
    assert torch.equal(p, before) and not optimizer.state


@pytest.mark.parametrize("name", ["foreach", "fused", "amsgrad", "maximize", "capturable"])
def test_settings_that_there_are_not(name):
    with pytest.raises(TypeError, match=name):
        compact.optim.AdamW(parameters((3, 3)), **{name: True})


@pytest.mark.parametrize("name, value", [("amsgrad", True), ("maximize", True), ("differentiable", True), ("decoupled_weight_decay", False)])
def test_settings_of_groups_that_there_are_not(name, value):
    p = parameters((3, 3))
    with pytest.raises(ValueError, match=f"{name}={value} is not supported"):
        compact.optim.AdamW([{"params": p, name: value, "weight_decay": 0.1}])
    optimizer = compact.optim.AdamW(p, weight_decay=0.1)
    optimizer.param_groups[0][name] = value
    p[0].grad = torch.ones(3, 3)
    with pytest.raises(ValueError, match=f"{name}={value} is not supported"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
def test_types_of_parameters(dtype):
    a, b = parameters((3, 3)), nn.Parameter(torch.zeros(3, 3, dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=f"parameter 1 of group 0 must be float32 or bfloat16, is {name}"):
        compact.optim.AdamW([*a, b])
    named = [{"params": [("a", a[0])]}, {"params": [("layers.0.b", b)]}]
    with pytest.raises(ValueError, match=r"parameter 0 of group 1 \(layers.0.b\) must be"):
        compact.optim.AdamW(named)
    # A parameter that is not trained may be of any type.
    optimizer = compact.optim.AdamW([*a, b.requires_grad_(False)])
    give_gradients(a, 0)
    optimizer.step()


def test_gradients_that_cannot_be():
    """The second of two parameters is refused: nothing happens to the first."""
    table = nn.Embedding(10, 4, sparse=True)
    (p,) = parameters((3, 3))
    optimizer = compact.optim.AdamW([p, table.weight])
    table(torch.tensor([1, 2])).sum().backward()
    before = p.detach().clone()
    give_gradients([p], 0)
    with pytest.raises(ValueError, match="parameter 1 of group 0 has a sparse gradient"):
        optimizer.step()
    assert torch.equal(p, before) and not optimizer.state
    with pytest.raises(ValueError, match="grad_scale must be one float32, is float64"):
        optimizer.step(grad_scale=torch.tensor(1.0, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"must be dense, with memory for every element, is torch.strided with strides \(0, 1\)"):
        compact.optim.AdamW([nn.Parameter(torch.zeros(1, 5).expand(4, 5))])


def test_state_on_another_device():
    """As of a model that was moved between two steps."""
    (p,) = parameters((3, 3))
    give_gradients([p], 0)
    optimizer = compact.optim.AdamW([p])
    optimizer.step()
    optimizer.state[p]["exp_avg"] = optimizer.state[p]["exp_avg"].to("meta")
    with pytest.raises(ValueError, match="the state of parameter 0 must be contiguous, on cpu, .* on meta"):
        optimizer.step()


def test_muon_refuses_what_it_cannot_tell_apart():
    net = Net()
    with pytest.raises(ValueError, match=r"parameters without names.*Trainer\(optimizers="):
        compact.optim.Muon(net.parameters())
    with pytest.raises(ValueError, match="must be a matrix for Muon, has the shape"):
        compact.optim.Muon([{"params": [net.head.bias], "kind": "muon"}])
    with pytest.raises(ValueError, match="kind of a group must be one of adamw, muon, is 'sgd'"):
        compact.optim.Muon([{"params": [net.head.bias], "kind": "sgd"}])
    with pytest.raises(ValueError, match="none of these parameters is a matrix of a module inside a numbered one"):
        compact.optim.Muon(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="FullyShardedDataParallel leaves none"):
        compact.optim.Muon((n, nn.Parameter(p.detach().flatten())) for n, p in net.named_parameters())
    with pytest.raises(ValueError, match="momentum must be in"):
        compact.optim.Muon(net, momentum=1.0)


def test_lazy_modules():
    net = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8))
    with pytest.raises(ValueError, match="compact.optim.AdamW: parameter 0 of group 0.* is of a lazy module, which has no shape before its first pass"):
        make("AdamW", net)
    net(torch.ones(2, 4)).sum().backward()
    make("AdamW", net).step()
