# SPDX-License-Identifier: Apache-2.0
"""The updates that optimizers compute."""
import copy
import math
import pathlib

from _device import DEVICE
from _optimizing import batch, BF16, F32, give_gradients, Net, parameters, same_bits, tensors, train
import pytest
import torch
from torch import nn
from torch.nn import functional

import compact

pytestmark = pytest.mark.usefixtures("one_thread")


def test_adamw_is_torchs():
    """50 updates of the same gradients, in two groups, under a schedule: to rounding."""
    ours, theirs = parameters((33, 257), (64,), (3, 4, 5), ()), parameters((33, 257), (64,), (3, 4, 5), ())

    def groups(ps):
        return [{"params": ps[:1], "weight_decay": 0.1, "betas": (0.8, 0.95)}, {"params": ps[1:], "lr": 3e-3}]

    a = compact.optim.AdamW(groups(ours), lr=1e-2, eps=1e-7)
    b = torch.optim.AdamW(groups(theirs), lr=1e-2, eps=1e-7)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=[1e-2, 3e-3], total_steps=60) for o in (a, b)]
    for step in range(50):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for each in (a, b, *schedules):
            each.step()
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)
        assert a.state[p]["step"] == b.state[q]["step"] == 50
        # Kernels take 1 - beta of a beta in f32: of 0.999 that is 1.3e-5 away from torch's.
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(a.state[p][name], b.state[q][name], rtol=2e-5, atol=2e-7)


STRIDES = {
    "channels_last": ((6, 5, 3, 3), lambda t: t.to(memory_format=torch.channels_last)),
    "channels_last_3d": ((6, 5, 3, 2, 2), lambda t: t.to(memory_format=torch.channels_last_3d)),
    "transposed": ((48, 300), lambda t: t.t().contiguous().t()),
    "every second column": ((48, 300), lambda t: torch.stack([t, t], -1).flatten(1)[:, ::2]),
}


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("dtype, moments, masters", [(F32, "f32", False), (F32, "f8", False), (BF16, "bf16", False), (BF16, "f8", True)])
@pytest.mark.parametrize("release", [False, True])
def test_any_strides(strides, kind, dtype, moments, masters, release):
    """Bit for bit what it is of contiguous weights: updates, state, and what a state that was loaded goes on to."""
    shape, change = STRIDES[strides]
    if kind == "muon" and len(shape) != 2:
        pytest.skip("Muon's are matrices")

    def make(p):
        groups = [{"params": [p], "kind": kind}]
        settings = {"lr": 1e-2, "weight_decay": 0.1, "moments": moments, "master_weights": masters, "release": release}
        return compact.optim.Muon(groups, **settings) if kind == "muon" else compact.optim.AdamW([p], **settings)

    (plain,) = parameters(shape, dtype=dtype)
    other = torch.nn.Parameter(change(plain.detach().clone()))
    assert other.stride() != plain.stride()
    stride, results = other.stride(), []
    for p in (plain, other):
        optimizer = make(p)
        for step in range(4):
            if step == 2:
                before, optimizer = optimizer.state_dict(), make(p)
                optimizer.load_state_dict(before)
            generator = torch.Generator().manual_seed(step)
            gradient = torch.randn(shape, generator=generator).to(dtype)
            (p * (change(gradient) if p is other else gradient)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(tensors(optimizer))
    assert other.stride() == stride and torch.equal(plain, other)
    assert len(results[0]) > 1 and same_bits(*results) and all(a.stride() == b.stride() for a, b in zip(*results))


def test_a_network_in_channels_last_trains_as_torchs():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    ours, theirs = (copy.deepcopy(net).to(memory_format=torch.channels_last) for _ in range(2))
    settings = {"lr": 1e-3, "eps": 1e-2}  # so that rounding of a gradient near 0 is no step
    optimizers = compact.optim.AdamW(ours.parameters(), **settings), torch.optim.AdamW(theirs.parameters(), **settings)
    x = torch.randn(5, 3, 8, 8).to(memory_format=torch.channels_last)
    for step in range(6):
        if step == 3:
            optimizers[0].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
        for each, optimizer in zip((ours, theirs), optimizers):
            each(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(ours.parameters(), theirs.parameters()):
        assert p.stride() == q.stride()
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def reference_muon(w, m, g, lr, momentum, decay, nesterov):
    m.mul_(momentum).add_(g)
    x = (g + momentum * m if nesterov else m).double()
    y = x / (x.norm() + 1e-7)
    tall = y.shape[0] > y.shape[1]
    y = y.T if tall else y
    for _ in range(5):
        a = y @ y.T
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    y = y.T if tall else y
    w.mul_(1 - lr * decay).sub_(lr * 0.2 * math.sqrt(max(w.shape)) * y)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_its_definition(nesterov):
    ours = parameters((48, 20), (20, 48))
    wanted = [p.detach().double().clone() for p in ours]
    momenta = [torch.zeros_like(w) for w in wanted]
    settings = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.1}
    optimizer = compact.optim.Muon([{"params": ours, "kind": "muon"}], **settings, moments="f32")
    for step in range(10):
        give_gradients(ours, step)
        for p, w, m in zip(ours, wanted, momenta):
            reference_muon(w, m, p.grad.double(), 0.02, 0.9, 0.1, nesterov)
        optimizer.step()
    for p, w in zip(ours, wanted):
        torch.testing.assert_close(p.detach().double(), w, rtol=1e-4, atol=1e-4)


def test_muon_takes_matrices_of_blocks():
    net = Net()
    optimizer = compact.optim.Muon(net, lr=1e-2, adamw_lr=1e-3, weight_decay=0.1)
    kinds = {n: g for g in optimizer.param_groups for n in g["param_names"]}
    muon = {n for n, g in kinds.items() if g["kind"] == "muon"}
    assert muon == {f"layers.{i}.{m}.weight" for i in (0, 1) for m in ("up", "down")}
    assert {n for n, g in kinds.items() if g["weight_decay"] == 0} == {
        n for n, p in net.named_parameters() if p.dim() == 1
    }
    assert all(g["lr"] == (1e-2 if n in muon else 1e-3) for n, g in kinds.items())
    assert len(kinds) == len(list(net.parameters()))
    named = compact.optim.Muon(net.named_parameters(), lr=1e-2, adamw_lr=1e-3, weight_decay=0.1)
    assert [g["param_names"] for g in named.param_groups] == [g["param_names"] for g in optimizer.param_groups]


def test_muon_learns():
    losses = []
    for optimizer_of in (
        lambda net: compact.optim.Muon(net, lr=4e-3),
        lambda net: torch.optim.AdamW(net.parameters(), lr=4e-3),
    ):
        net = Net()
        train(net, optimizer_of(net), list(range(8)) * 15)
        with torch.no_grad():
            losses.append(sum(functional.cross_entropy(net(x), y).item() for x, y in map(batch, range(8))) / 8)
    assert losses[0] < 1.1 * losses[1], losses


def test_calls_are_torchs():
    p, q = parameters((4, 300), (7,))
    optimizer = compact.optim.AdamW([p], lr=1e-2)
    before = p.detach().clone()
    optimizer.step()  # no gradient
    assert torch.equal(p, before) and not optimizer.state
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(torch.is_grad_enabled())
        return loss

    assert optimizer.step(closure) == before.square().sum() and calls == [True]
    assert not torch.equal(p, before)
    optimizer.add_param_group({"params": [q], "lr": 0.5})
    assert [g["lr"] for g in optimizer.param_groups] == [1e-2, 0.5]
    optimizer.zero_grad()
    assert p.grad is None
    q.grad = torch.ones_like(q)
    version, old = q._version, q.detach().clone()
    optimizer.step()
    assert torch.allclose(q, old * (1 - 0.5 * 0.01) - 0.5, rtol=1e-4) and q._version > version
    assert optimizer.state[p]["step"] == 1 and optimizer.state[q]["step"] == 1


def test_gradients_are_scaled_as_they_are_read():
    (p,), (q,) = parameters((9, 30)), parameters((9, 30))
    a, b = (compact.optim.AdamW([x], lr=torch.tensor(1e-2), moments="f8") for x in (p, q))
    for step in range(3):
        give_gradients([p], step)
        q.grad = p.grad * 0.25
        kept = p.grad.clone()
        a.step(grad_scale=torch.tensor(0.25))
        b.step()
        assert torch.equal(p.grad, kept)
    assert torch.equal(p, q) and same_bits(tensors(a), tensors(b))


# -- rounding -----------------------------------------------------------------------------------------


def rounded_down(seed=0, parameter=0, updates=1):
    """Which of 65,536 ones an update of 0.3 units in the last place takes down by one."""
    ps = [nn.Parameter(torch.ones(256, 256, dtype=BF16)) for _ in range(parameter + 1)]
    optimizer = compact.optim.AdamW(ps, lr=0.3 * 2**-8, weight_decay=0.0, seed=seed)
    for _ in range(updates):
        with torch.no_grad():
            ps[-1].fill_(1)
        for p in ps:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert set(ps[-1].unique().tolist()) == {1.0, 1 - 2**-8}
    return ps[-1].detach() < 1


def test_bf16_weights_round_without_bias():
    """The share is 0.3 within five standard errors; other keys give other, independent bits."""
    first = rounded_down()
    error = 5 * math.sqrt(0.3 * 0.7 / first.numel())
    assert torch.equal(first, rounded_down())
    for other in (first, rounded_down(seed=1), rounded_down(parameter=1), rounded_down(updates=2)):
        assert abs(other.float().mean().item() - 0.3) < error
        if other is not first:
            both = (first & other).float().mean().item()
            assert abs(both - 0.09) < 5 * math.sqrt(0.09 * 0.91 / first.numel())


def test_masters_are_f32_training():
    """The master of bf16 weights is what f32 weights become, and the weight is the master, rounded."""
    ours = parameters((9, 300), (5,), dtype=BF16)
    theirs = [nn.Parameter(p.detach().float()) for p in ours]
    a = compact.optim.AdamW(ours, lr=1e-4, master_weights=True)
    b = compact.optim.AdamW(theirs, lr=1e-4, master_weights=True)  # which f32 weights do not need
    for step in range(20):
        give_gradients(ours, step)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step()
        b.step()
    for p, q in zip(ours, theirs):
        assert torch.equal(a.state[p]["master"], q) and torch.equal(p, q.bfloat16())
        assert "master" not in b.state[q]


def test_masters_of_muon():
    (p,) = parameters((20, 30), dtype=BF16)
    start = p.detach().float()
    optimizer = compact.optim.Muon([{"params": [p], "kind": "muon"}], lr=1e-4, master_weights=True)
    for step in range(20):
        give_gradients([p], step)
        optimizer.step()
    master = optimizer.state[p]["master"]
    assert torch.equal(p, master.bfloat16())
    assert 1e-4 < (master - start).abs().max() < 0.01


def reached(seed, dtype, moments, master_weights=False, steps=250):
    """Mean loss of all characters of the licence's text, of a small network trained on it."""
    text = (pathlib.Path(__file__).parents[3] / "LICENSE").read_bytes()
    data = torch.tensor(list(text))
    windows = data.unfold(0, 9, 1)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Embedding(128, 24), nn.Flatten(), nn.Linear(8 * 24, 256), nn.GELU(), nn.Linear(256, 128)
    ).to(dtype)
    optimizer = compact.optim.AdamW(
        net.parameters(), lr=3e-3, moments=moments, master_weights=master_weights, seed=seed
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = windows[torch.randint(len(windows), (256,), generator=generator)]
        optimizer.zero_grad()
        functional.cross_entropy(net(chosen[:, :8]).float(), chosen[:, 8]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return functional.cross_entropy(net.float()(windows[:, :8]), windows[:, 8]).item()


def test_bf16_with_8_bit_moments_trains_as_f32():
    """Five seeds, paired: the 99 % interval of the mean difference of losses lies within 1 % of f32's.

    Rounded to nearest, as torch.optim.AdamW does, the same weights end about 5 % above.
    """
    pairs = [(reached(s, F32, "f32"), reached(s, BF16, "f8")) for s in range(5)]
    differences = torch.tensor([b - a for a, b in pairs])
    half = 4.604 * differences.std().item() / math.sqrt(len(pairs))  # t, four degrees of freedom
    mean, loss = differences.mean().item(), sum(a for a, _ in pairs) / len(pairs)
    assert loss < 1.5, pairs
    assert abs(mean) + half < 0.01 * loss, (mean, half, loss, pairs)


def test_an_overflow_of_8_bit_moments_is_alone():
    """Where a gradient's square overflows, its second moment is infinite, as in float32, and no neighbour's changes."""
    exact, p = parameters((2, 600), (2, 600))
    with torch.no_grad():
        p.copy_(exact)
    a, b = compact.optim.AdamW([exact], lr=1e-2), compact.optim.AdamW([p], lr=1e-2, moments="f8")
    for step in range(3):
        for q, optimizer in ((exact, a), (p, b)):
            give_gradients([q], 0)
            if step == 1:
                q.grad[1, 300] = 1e20
            optimizer.step()
    assert torch.isfinite(p).all()
    rest = torch.ones_like(p, dtype=torch.bool)
    rest[1, 256:512] = False  # these share the first moment's power
    torch.testing.assert_close(p[rest], exact[rest], atol=5e-3, rtol=0)
    torch.testing.assert_close(p, exact, atol=2e-2, rtol=0)
    scales = b.state[p]["exp_avg_sq_scales"]
    assert (scales[scales.isfinite()] < 1e3).all() and scales.isfinite().all()
    assert (b.state[p]["exp_avg_sq"] == 255).nonzero().tolist() == a.state[exact]["exp_avg_sq"].isinf().nonzero().tolist() == [[1, 300]]


@pytest.mark.parametrize("moments", ["f32", "bf16", "f8"])
def test_sizes_at_the_edge(moments):
    """No element, one, and blocks of an 8-bit moment that are just full, or just begun."""
    params = parameters((0,), (0, 5), (5, 0), (), (1, 1), (3, 255), (3, 256), (3, 257), (2, 3, 4, 5))
    before = [p.detach().clone() for p in params]
    optimizer = compact.optim.AdamW(params, lr=0.5, weight_decay=0.0, moments=moments)
    for step in range(2):
        give_gradients(params, step)
        if step == 0:
            signs = [p.grad.sign() for p in params]
        optimizer.step()
        if step == 0:  # the first update is the learning rate, whatever the gradient
            for p, old, sign in zip(params, before, signs):
                torch.testing.assert_close(p.detach(), old - 0.5 * sign, rtol=1e-4, atol=1e-4)
    assert all(torch.isfinite(p).all() for p in params)
    again = compact.optim.AdamW(params, moments=moments)
    again.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("kind", [compact.optim.AdamW, compact.optim.Muon])
def test_updates_inside_autocast_are_the_same(kind):
    bits = []
    for inside in (False, True):
        net = Net()
        optimizer = kind(net if kind is compact.optim.Muon else net.parameters(), lr=1e-2)
        give_gradients(net.parameters(), 0)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=inside):
            optimizer.step()
        bits.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*bits))
