# SPDX-License-Identifier: Apache-2.0
"""Fused attention, whose backward pass divides by sums that its forward pass made: they are made again from what is held."""
import contextlib

from _device import cpu_only
from _scopes import EIGHT, FOUR, nothing_is_left  # noqa: F401 - a fixture for all tests
import pytest
import torch
from torch.nn import functional as F

import compact


def attention(factor=1.0, dtype=torch.float32, one_tensor=False, least=16, **options):
    """Queries, keys and values; what attends them; and a gradient that comes in."""
    draw = torch.Generator().manual_seed(1)
    q, k, v, g = (torch.randn(2, 4, 96, 64, generator=draw, dtype=dtype) for _ in range(4))
    parts = [(q * factor).requires_grad_(), (k * factor).requires_grad_(), v.requires_grad_()]

    def run(policy, *inputs):
        with compact.saved_tensors(policy, least_elements=least) if policy else contextlib.nullcontext() as saved:
            inputs = [t * 1 for t in inputs or parts]
            if one_tensor:
                inputs = torch.cat(inputs).view(3, 2, 4, 96, 64).unbind()
            return F.scaled_dot_product_attention(*inputs, **options), saved

    return run, parts, g


MASK = torch.where(torch.randn(96, 96, generator=torch.Generator().manual_seed(2)) > 0, 0.0, -torch.inf).fill_diagonal_(0)


@pytest.mark.parametrize("least", [16, 1024])  # sums are fewer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("one_tensor", [False, True])
@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.3}], ids=lambda x: next(iter(x)))
def test_attention_is_that_of_what_is_held(options, one_tensor, dtype, least):
    if "attn_mask" in options:
        options = {"attn_mask": options["attn_mask"].to(dtype)}
    run, parts, g = attention(2.0, dtype, one_tensor, least, **options)
    y, saved = run(FOUR)
    held = [getattr(y.grad_fn, f"_saved_{name}").detach().clone() for name in ("query", "key", "value")]
    assert not torch.equal(held[0], parts[0])
    got = torch.autograd.grad(y, parts, g, retain_graph=True)
    again = torch.autograd.grad(y, parts, g)
    held = [t.requires_grad_() for t in held]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*held, **options), held, g)
    for a, b, c in zip(got, again, wanted, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)
    rows = [t for t in saved.report() if t.treatment == "recompute"]
    assert sorted((t.bytes, t.stored) for t in rows) == [(4 * 2 * 4 * 96, 0), (y.numel() * y.element_size(), 0)]


@pytest.mark.parametrize(
    ("deviation", "policy", "most"), [(1, FOUR, 0.4), (4, FOUR, 0.75), (16, FOUR, 1.5), (4, EIGHT, 0.05), (16, EIGHT, 0.2)]
)
def test_large_scores_are_near(deviation, policy, most):
    run, parts, g = attention(deviation**0.5, is_causal=True)
    wanted = torch.autograd.grad(run(None)[0], parts, g)
    got = torch.autograd.grad(run(policy)[0], parts, g)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).norm() < most * b.norm()


def test_keys_that_are_queries_of_the_other_sign():
    _, (q, _, v), g = attention()

    def run(policy):
        with compact.saved_tensors(policy, least_elements=16) if policy else contextlib.nullcontext():
            x = q * 1
            return F.scaled_dot_product_attention(x, torch._neg_view(x), v * 1)

    wanted = torch.autograd.grad(run(None), [q, v], g)
    got = torch.autograd.grad(run(EIGHT), [q, v], g)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).norm() < 0.05 * b.norm()


@cpu_only  # the efficient kernel for a GPU refuses this, with and without a scope
@pytest.mark.parametrize("policy", ["off", FOUR])
def test_attention_under_vmap(policy):
    draw = torch.Generator().manual_seed(1)
    parts = [torch.randn(3, 2, 4, 32, 64, generator=draw).requires_grad_() for _ in range(3)]

    def gradients(scope):
        with scope:
            y = torch.vmap(lambda q, k, v: F.scaled_dot_product_attention(q * 1, k * 1, v * 1))(*parts)
        return torch.autograd.grad(y.pow(2).sum(), parts)

    wanted = gradients(contextlib.nullcontext())
    for a, b in zip(gradients(compact.saved_tensors(policy, least_elements=16)), wanted, strict=True):
        assert (a - b).norm() <= (0 if policy == "off" else 0.6) * b.norm()


def test_queries_that_are_held_whole_later():
    run, parts, g = attention(2.0)
    with compact.saved_tensors(FOUR, least_elements=16):
        q, k, v = (t * 1 for t in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        assert y.grad_fn._saved_output is not None  # made of rounded ones, and the sums with it
        others = q.abs().sum() + k.abs().sum()
    held = [getattr(y.grad_fn, f"_saved_{name}").detach().clone().requires_grad_() for name in ("query", "key", "value")]
    assert torch.equal(held[0], parts[0])
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*held), held, g)
    for a, b in zip(torch.autograd.grad(y, (q, k, v), g), wanted, strict=True):
        assert torch.equal(a, b)
    assert others.isfinite()


def test_attention_of_exact_queries_and_keys_keeps_its_results():
    run, parts, g = attention(is_causal=True)
    y, saved = run("slot *.input2 = quantize:bits=4")
    assert "recompute" not in {t.treatment for t in saved.report()}
    wanted = torch.autograd.grad(run(None)[0], parts[2], g)
    assert torch.equal(torch.autograd.grad(y, parts[2], g)[0], wanted[0])


def test_results_of_attention_that_others_read_are_counted_once():
    _, parts, _ = attention()
    w = torch.randn(256, 256, generator=torch.Generator().manual_seed(4)).requires_grad_()
    with compact.saved_tensors(FOUR, least_elements=16) as saved:
        inputs = [(t.view(2, 96, 4, 64) * 1).transpose(1, 2) for t in parts]  # as models have them
        y = F.scaled_dot_product_attention(*inputs, is_causal=True)
        y.transpose(1, 2).reshape(2, 96, 256) @ w
    report = saved.report()
    whole = 4 * 2 * 4 * 96 * 64
    assert sum(t.bytes for t in report if not t.parameter and not t.shared) == 4 * whole + 4 * 2 * 4 * 96
    assert [t.shared for t in report if ".mm." in t.name and not t.parameter] == [True]
    assert all(t.stored for t in report if t.shared and not t.parameter)


# Autograd saves keys before queries.
@pytest.mark.parametrize("second", ["offload", "mask:of=sign"])
def test_queries_and_keys_that_are_one_tensor_held_in_two_ways(second):
    _, (x, _, v), g = attention(3.0)
    policy = f"slot * = quantize:bits=4\nslot *.input1@2 = {second}"
    with compact.saved_tensors(policy, least_elements=16):
        both = x * 1
        y = F.scaled_dot_product_attention(both, both, v * 1)
    held = [getattr(y.grad_fn, f"_saved_{name}").detach().clone() for name in ("query", "key", "value")]
    assert not torch.equal(held[0], held[1])
    q, k, w = (t.requires_grad_() for t in held)
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(q, k, w), [q, k, w], g)
    got = torch.autograd.grad(y, [x, v], g)
    assert torch.equal(got[0], wanted[0] + wanted[1])
    assert torch.equal(got[1], wanted[2])


def test_keys_that_are_held_as_signs():
    run, parts, g = attention(2.0)
    y, _ = run("slot *attention*.input1 = mask:of=sign")
    held = [getattr(y.grad_fn, f"_saved_{name}").detach().clone().requires_grad_() for name in ("query", "key", "value")]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*held), held, g)
    for a, b in zip(torch.autograd.grad(y, parts, g), wanted, strict=True):
        assert torch.equal(a, b)


class Wrapped(torch.Tensor):
    """A subclass that any operation sees as it is, and that codecs keep."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        plain = [a.inner if isinstance(a, Wrapped) else a for a in arguments]
        return function(*plain, **(options or {}))


def test_keys_of_a_subclass_leave_the_queries_exact():
    _, (q, k, v), g = attention(4.0)

    def gradient(policy):
        with compact.saved_tensors(policy, least_elements=16) if policy else contextlib.nullcontext():
            y = F.scaled_dot_product_attention(q * 1, Wrapped(k.detach()), Wrapped(v.detach()))
        return torch.autograd.grad(y, q, g)[0]

    assert torch.equal(gradient("slot *attention* = quantize:bits=4"), gradient(None))


# The cast of a weight is made again from the weight, unless that is another tensor by then.
def test_a_cast_of_a_weight_whose_data_were_swapped():
    w = torch.nn.Parameter(torch.randn(64, 64))
    x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    with compact.saved_tensors("off", least_elements=16):
        cast = w.to(torch.bfloat16)
        w.data = 3 * w.data
        y = x @ cast
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones(64, 64, dtype=torch.bfloat16) @ cast.t())
