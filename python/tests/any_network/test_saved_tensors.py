# SPDX-License-Identifier: Apache-2.0
"""The tensors that come back from saved_tensors(): bits, nearness, versions."""
import contextlib
import warnings

from _scopes import distance, EIGHT, FOUR, net, nothing_is_left, same, step  # noqa: F401 - a fixture for all tests
from conftest import gradients, inputs, make
import pytest
import torch
from torch import nn

import compact


# ---- What comes back.


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("least", [0, 1, 1024, 10**9])
@pytest.mark.parametrize("lossless", [False, True, None])
def test_lossless_changes_no_bit(autocast, least, lossless):
    model, ids = net()
    wanted = step(model, ids, autocast=autocast)
    saved = compact.saved_tensors("off", model=model, least_elements=least, lossless=lossless)
    assert same(step(model, ids, saved, autocast), wanted)
    assert same(step(model, ids, saved, autocast), wanted)  # once more by the same object
    assert saved.live_bytes == 0
    if least == 10**9:
        assert len(saved.report()) == 0
    elif lossless:
        assert saved.stored < saved.bytes
        held = {t.treatment.split(":")[0] for t in saved.report()}
        assert {"mask", "index"} <= held <= {"mask", "index", "keep", "parameter"}
    else:
        assert saved.stored == saved.bytes > 0


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "vit"])
def test_models_of_transformers_under_lossless_policies(kind):
    model, given = make(kind), inputs(kind)
    _, wanted = gradients(model, given)
    model.zero_grad()
    with compact.saved_tensors("off", model=model, lossless=True, least_elements=1) as saved:
        loss = model(**given).loss
    loss.backward()
    assert same({n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}, wanted)
    assert not saved.live_bytes


class Mixed(torch.autograd.Function):
    """Saves what it is given, and looks at what comes back."""

    @staticmethod
    def forward(ctx, x, *others):
        ctx.save_for_backward(*others)
        ctx.wanted = [t.to_dense() if t.layout != torch.strided else t.clone() for t in others]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        for t, wanted in zip(ctx.saved_tensors, ctx.wanted):
            dense = t.to_dense() if t.layout != torch.strided else t
            assert dense.dtype == wanted.dtype and torch.equal(dense, wanted), wanted.dtype
            assert dense.is_conj() == wanted.is_conj() or wanted.is_complex()
        Mixed.layouts = [
            (t.layout, t.shape, t.stride() if t.layout == torch.strided else None) for t in ctx.saved_tensors
        ]
        return (g,) + (None,) * len(ctx.wanted)


def test_types_and_layouts_that_no_policy_encodes():
    big = torch.randn(64, 64)
    odd = [
        big.double(),
        torch.view_as_complex(torch.randn(64, 64, 2)),
        torch.view_as_complex(torch.randn(64, 64, 2)).conj(),
        torch.view_as_complex(torch.randn(64, 64, 2)).conj().imag,  # a negative bit
        torch.randint(-(2**40), 2**40, (64, 64)),
        torch.randint(-5, 5, (64, 64), dtype=torch.int32),
        torch.randint(0, 2, (64, 65)).bool(),
        torch.randint(0, 200, (64, 64), dtype=torch.uint8),
        (big > 1).float(),  # two values
        big.to_sparse(),
        big.to_sparse_csr(),
        torch.randn(64, 1).expand(64, 64).double(),
        torch.randn(1, 64).expand(64, 64),  # elements that repeat
        big.to(torch.float8_e4m3fn).to(torch.float32).to(torch.float64),
        torch.zeros(0, 5),
        torch.tensor(3.0),
    ]
    x = torch.ones(3, requires_grad=True)
    with compact.saved_tensors(EIGHT, least_elements=1) as saved:
        y = Mixed.apply(x, *odd)
    y.sum().backward()
    for t, (layout, shape, stride) in zip(odd, Mixed.layouts):
        assert layout == t.layout and shape == t.shape
        assert stride is None or stride == t.stride() or t.is_floating_point()
    assert {t.treatment.split(":")[0] for t in saved.report()} <= {"keep", "mask", "index"}


def test_float8_is_kept():
    t = torch.randn(64, 64).to(torch.float8_e4m3fn)
    held = compact.saved_tensors(EIGHT, least_elements=1)._pack(t)
    assert torch.equal(held.unpack().view(torch.uint8), t.view(torch.uint8))


@pytest.mark.parametrize("type", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced", "channels_last", "with holes"])
def test_encoded_tensors_keep_shape_and_type(type, layout):
    t = torch.randn(6, 8, 10, 12).to(type)
    t = {
        "plain": t,
        "transposed": t.transpose(1, 3),
        "sliced": t[2:],
        "channels_last": t.contiguous(memory_format=torch.channels_last),
        "with holes": t[:, :, ::2],
    }[layout]
    with compact.saved_tensors(EIGHT, least_elements=1):
        y = torch.ones((), dtype=type, requires_grad=True) * t
    back = y.grad_fn._saved_other
    assert back.shape == t.shape and back.dtype == t.dtype and back.device == t.device
    assert layout == "with holes" or back.stride() == t.stride()
    assert (back.float() - t.float()).abs().max() < 0.05
    assert not torch.equal(back, t)


def test_gradients_under_quantize_are_near_and_unbiased():
    x, w = torch.randn(200, 64), nn.Parameter(torch.randn(64, 8))
    wanted = x.sum(0)[:, None].expand(64, 8)
    for policy, bound in (("slot * = quantize:bits=8", 0.03), ("slot * = quantize:bits=2", 1.0)):
        saved = compact.saved_tensors(policy, least_elements=1)
        total = torch.zeros(64, 8)
        for i in range(400):
            w.grad = None
            with saved:
                y = (x @ w).sum()
            y.backward()
            total += w.grad
            if i == 0:
                first = (w.grad - wanted).norm() / wanted.norm()
        assert 0 < first < bound
        # Independent errors shrink as 1 / sqrt(400) does.
        assert (total / 400 - wanted).norm() / wanted.norm() < first / 10


def test_gradients_of_a_net_are_near():
    model, ids = net()
    wanted = step(model, ids)
    assert 0 < distance(step(model, ids, compact.saved_tensors(EIGHT, model=model)), wanted) < 0.03
    assert 0 < distance(step(model, ids, compact.saved_tensors("gact-l1", model=model)), wanted) < 0.3


def test_random_bits_come_from_the_seed():
    model, ids = net()
    saved = compact.saved_tensors(FOUR, model=model)
    first, again, other = (step(model, ids, saved, seed=seed) for seed in (3, 3, 4))
    assert same(first, again) and not same(first, other)


@pytest.mark.parametrize("policy", ["off", "exact", "recompute", "pool", "gact-l1", FOUR])
def test_what_is_drawn_inside_is_what_would_be(policy):
    model, ids = net()

    def draws(scope):
        torch.manual_seed(3)
        with warnings.catch_warnings(), scope:
            warnings.simplefilter("ignore")
            model(ids)  # with dropout
            inside = torch.rand(3)
        return inside, torch.get_rng_state()

    (wanted, state), (got, after) = draws(contextlib.nullcontext()), draws(compact.saved_tensors(policy, model=model))
    assert torch.equal(got, wanted)
    rounds = policy not in ("off", "exact", "recompute")
    assert torch.equal(after, state) != rounds  # another pass rounds otherwise
    with compact.saved_tensors(policy):
        pass  # where nothing is saved, nothing is rounded
    assert torch.equal(torch.get_rng_state(), after)


# ---- Changes in place, other uses of a graph.


@pytest.mark.parametrize("least", [1, 10**9])
@pytest.mark.parametrize("what", ["activation", "parameter"])
def test_what_is_kept_and_changed_in_place_raises(least, what):
    w, x = nn.Parameter(torch.randn(64, 64)), torch.randn(64, 64)
    with compact.saved_tensors("off", least_elements=least):
        z = x @ w
        y = (z * z).sum() if what == "activation" else ((x * 2) @ w @ w).sum()
    with torch.no_grad():
        (z if what == "activation" else w).add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_what_is_encoded_gives_the_old_value():
    x = torch.randn(64, 64, requires_grad=True)
    with compact.saved_tensors(EIGHT, least_elements=1):
        z = x * 1
        y = (z * x).sum()
    with torch.no_grad():
        z.add_(1)
    y.backward()
    assert (x.grad - 2 * x).abs().max() < 0.1


def test_versions_of_one_tensor_are_two():
    x, a, b = (torch.randn(64, 64, requires_grad=True) for _ in range(3))
    with compact.saved_tensors(EIGHT, least_elements=1) as saved:
        z = x * 1
        y = z * a
        z.add_(5)
        y = (y + z * b).sum()
    y.backward()
    assert (a.grad - x).abs().max() < 0.1 and (b.grad - x - 5).abs().max() < 0.1
    assert [t.shared for t in saved.report() if not t.parameter] == [False, False]


def test_graphs_may_be_used_twice():
    model, ids = net()
    torch.manual_seed(2)
    with compact.saved_tensors(FOUR, model=model) as saved:
        loss = model(ids)
    loss.backward(retain_graph=True)
    first = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert saved.live_bytes == saved.stored
    model.zero_grad()
    loss.backward()
    assert same(first, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert saved.live_bytes == 0


@pytest.mark.parametrize("inside", [False, True])
def test_double_backward(inside):
    x = torch.randn(48, 48, requires_grad=True)
    w = nn.Parameter(torch.randn(48, 48) / 7)

    def run(saved):
        w.grad = None
        with contextlib.ExitStack() as stack:
            stack.enter_context(saved)
            y = nn.functional.gelu(x @ w).square().sum()
            if not inside:
                stack.close()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            g.square().sum().backward()
        return w.grad

    wanted = run(contextlib.nullcontext())
    assert torch.equal(run(compact.saved_tensors("off", least_elements=1)), wanted)
    got = run(compact.saved_tensors(EIGHT, least_elements=1))
    assert 0 < (got - wanted).norm() / wanted.norm() < 0.1


@pytest.mark.parametrize("inside", [False, True])
def test_backward_stands_outside_or_inside(inside):
    model, ids = net()
    wanted = step(model, ids)
    model.zero_grad()
    torch.manual_seed(2)
    with compact.saved_tensors("off", model=model) as saved:
        loss = model(ids)
        if inside:
            loss.backward()
            assert saved.live_bytes == 0
    if not inside:
        loss.backward()
    assert same({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, wanted)
