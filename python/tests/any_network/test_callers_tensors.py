# SPDX-License-Identifier: Apache-2.0
"""A batch stays its caller's: it is held in no codes, others may write to it, and a network may write to its input."""
import copy

import _any_networks
from _device import cpu_only
from _planning import measured
from _whole_networks import same
import numpy
import pytest
import torch
from conftest import gradients
from torch import nn

import compact
import compact.hf


PARTS = ["slot role:cheap = recompute\nslot role:heavy = recompute:budget=60%\n", "slot role:cheap = recompute\nslot role:heavy = recompute:budget=40%\n"]


@cpu_only
@pytest.mark.parametrize("policy", ["off", "exact", *PARTS, "gact-l1"])
@pytest.mark.filterwarnings("ignore:compact.saved_tensors")
def test_a_batch_is_its_callers(policy):
    """It is held in no codes, counts 0 bytes, and plans are exact."""
    given = _any_networks.masked_inputs()
    row = compact.plan(_any_networks.Masked(), given, policies=policy, optimizer=None, clip=False)["rows"][0]
    assert measured("masked", policy, given, None, False, make=lambda _: _any_networks.Masked()) == row["peak"]
    torch.manual_seed(0)
    model = _any_networks.Masked()
    wanted = gradients(copy.deepcopy(model), given)
    got = gradients(compact.apply(model, policy), given)
    assert policy == "gact-l1" or (got[0] == wanted[0] and same(got[1].values(), wanted[1].values()))
    saved = compact.report(model).saved
    of_batch = [t for t in saved if t.name in ("a.addmm.input1", "a~2.mul.input1", "b~2.mul.input1", "c~1.mul.input1")]
    assert [(t.treatment, t.bytes, t.stored) for t in of_batch] == [("parameter", 0, 0)] * 4
    assert saved.bytes == 5 * 512 * 256 * 4 and (policy != "off" or saved.stored == saved.bytes)


def test_a_batch_that_was_changed_in_place():
    given = _any_networks.masked_inputs()
    loss = compact.apply(_any_networks.Masked())(**given).loss
    given["mask"].zero_()
    with pytest.raises(RuntimeError, match="changed in place|modified by an inplace operation"):
        loss.backward()


class Frames(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(4, 8, 3), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.float() / 255)).mean((2, 3))).sum()


@cpu_only
@pytest.mark.parametrize("memory", [lambda t: torch.from_numpy(t.numpy()), lambda t: t.share_memory_(), torch.from_dlpack, lambda t: (t.numpy(), t)[1]])
def test_memory_that_others_write_unseen(memory):
    """An environment gives all frames in one array, which nothing is rebuilt from; it counts 0 bytes."""
    losses, grads = [], []
    for model in (Frames(), compact.apply(Frames())):
        given, loss = memory(torch.zeros(8, 4, 32, 32, dtype=torch.uint8)), 0
        array, draw = given.numpy(), numpy.random.default_rng(0)
        for _ in range(3):
            array[:] = draw.integers(256, size=array.shape)
            loss = loss + model(given)
        loss.backward()
        losses.append(loss.detach())
        grads.append([p.grad for p in model.parameters()])
    assert torch.equal(*losses) and same(*grads)
    model = compact.apply(nn.Linear(1024, 8))
    model(memory(torch.zeros(8, 1024)))
    assert compact.report(model).saved.bytes == 0


class WritesToItsInput(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        y = self.a(x)
        x.mul_(2)
        return (self.b(x) * y).mean()


def test_networks_may_write_to_their_input():
    """Under autocast a product saves the cast of its input, which PyTorch holds."""
    x, grads = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)), []
    for policy in (None, "exact"):
        torch.manual_seed(0)
        model = WritesToItsInput() if policy is None else compact.apply(WritesToItsInput(), policy)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x.clone())
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    assert same(*grads)


@pytest.mark.parametrize("write", [lambda m: m.zero_(), lambda m: m.view(-1)[:9].fill_(5), lambda m: m.copy_(m.flip(0))])
def test_networks_may_write_to_a_mask_that_they_have_cast(write):
    class Masks(nn.Module):
        def forward(self, x, mask):
            y = torch.tanh(x) * mask.float()
            write(mask)
            return (y * y * mask).sum()

    grads = []
    for model in (Masks(), compact.apply(Masks())):
        g = torch.Generator().manual_seed(1)
        x, mask = torch.randn(64, 64, generator=g).requires_grad_(), torch.randint(3, (64, 64), generator=g)
        model(x, mask).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
