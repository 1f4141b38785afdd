# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of tokens and entropies beside torch's log_softmax in float64: values, gradients, and bytes that are held."""
import math

from _device import cpu_only, DEVICE
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import compact
from compact.layers import token_log_probs as module

CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 4e-3}
IGNORED = -100


@pytest.fixture(autouse=True)
def narrow_tiles(monkeypatch):
    """So that small vocabularies are made in several parts, too."""
    monkeypatch.setattr(module, "_LEAST_COLUMNS", 1)


def given(shape=(3, 7), vocabulary=101, width=16, dtype=torch.float32, bias=False, ignored=((0, 1), (2, 6)), scale=1.0, seed=0):
    torch.manual_seed(seed)
    hidden, weight = torch.randn(*shape, width).to(dtype), (torch.randn(vocabulary, width) * scale).to(dtype)
    targets = torch.randint(0, vocabulary, shape)
    for at in ignored:
        targets[at] = IGNORED
    biases = [torch.randn(vocabulary).to(dtype)] if bias else []
    return targets, [x.requires_grad_() for x in (hidden, weight, *biases)]


def plain(targets, inputs, temperature=1.0, softcap=None):
    hidden, weight, *bias = inputs
    logits = hidden @ weight.T + (bias[0] if bias else 0)
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    log_p = (logits / temperature).log_softmax(-1)
    kept = targets != IGNORED
    log_probs = log_p.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(kept, log_probs, 0), torch.where(kept, -(log_p.exp() * log_p).sum(-1), 0)


def ours(targets, inputs, **settings):
    hidden, weight, *bias = inputs
    return compact.token_log_probs(hidden, weight, targets, bias=bias[0] if bias else None, **settings)


def rates_of(x, seed=3):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def losses(log_probs, entropy):
    """One of log probabilities, one of entropies, and of both."""
    first, second = (log_probs.double() * rates_of(log_probs)).sum(), (entropy.double() * rates_of(entropy, 4)).sum()
    return first, second, first + second


def compare(targets, inputs, to=None, tokens=0, **settings):
    to = to or CLOSE[inputs[0].dtype]
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    got, wanted = ours(targets, inputs, entropy=True, tokens=tokens, **settings), plain(targets, exact, **settings)
    for a, b in zip(got, wanted):
        assert a.shape == targets.shape and torch.allclose(a.double(), b, rtol=to, atol=3 * to)
        assert not a[targets == IGNORED].any()
    of = [i for i, x in enumerate(inputs) if x.requires_grad]
    for a, b in zip(losses(*got), losses(*wanted)):
        grads = torch.autograd.grad(a, [inputs[i] for i in of], retain_graph=True)
        for x, y, i in zip(grads, torch.autograd.grad(b, [exact[i] for i in of], retain_graph=True), of):
            assert x.dtype == inputs[i].dtype and float((x.double() - y).norm()) <= to * max(1.0, float(y.norm()))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"softcap": 5.0}, {"temperature": 1.3, "softcap": 4.0}], ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_values_and_gradients(dtype, settings):
    for tokens in (0, 1, 3):
        compare(*given(dtype=dtype), tokens=tokens, **settings)
        compare(*given(dtype=dtype, bias=True, seed=1), tokens=tokens, **settings)


@pytest.mark.parametrize("vocabulary", [1, 2, 17, 255, 1031])
def test_shapes(vocabulary):
    for shape in ((), (1,), (5,), (2, 1, 4)):
        compare(*given(shape, vocabulary, ignored=()), tokens=2)
        compare(*given(shape, vocabulary, width=1, ignored=()))


@pytest.mark.parametrize("frozen", [[0], [1], [2], [0, 1], [1, 2]], ids=str)
def test_what_is_frozen_has_no_gradient(frozen):
    targets, inputs = given(bias=True)
    for i in frozen:
        inputs[i].requires_grad_(False)
    for tokens in (0, 2):
        compare(targets, inputs, tokens=tokens)
    sum(losses(*ours(targets, inputs, entropy=True))).backward()
    assert all((x.grad is None) == (i in frozen) for i, x in enumerate(inputs))


def test_nothing_to_differentiate():
    targets, inputs = given()
    with torch.no_grad():
        got = ours(targets, inputs, entropy=True)
    assert not got[0].requires_grad and not got[1].requires_grad
    wanted = ours(targets, [x.detach() for x in inputs], entropy=True)
    assert not wanted[0].requires_grad and all(map(torch.equal, got, wanted))
    assert torch.equal(ours(targets, inputs), wanted[0])


def test_empty_and_ignored():
    for shape in ((0,), (2, 0), (2, 3)):
        targets, inputs = given(shape, ignored=(), bias=True)
        targets.fill_(IGNORED)
        got = ours(targets, inputs, entropy=True)
        assert all(x.shape == shape and not x.any() for x in got)
        sum(losses(*got)).backward()
        assert all(x.grad.shape == x.shape and not x.grad.any() for x in inputs)


def test_targets_of_other_types():
    targets, inputs = given(ignored=())
    wanted = ours(targets, inputs)
    for dtype in (torch.uint8, torch.int32, torch.int16):
        assert torch.equal(ours(targets.to(dtype), inputs), wanted)


def test_not_contiguous():
    targets, (hidden, weight) = given()
    wide = torch.randn(3, 7, 32)
    inputs = [wide[..., ::2].requires_grad_(), torch.randn(16, 101).T.requires_grad_()]
    compare(targets, inputs)
    compare(targets.T, [inputs[0].detach().transpose(0, 1).requires_grad_(), weight])
    rates = torch.randn(1, 1).expand(3, 7)  # gradients, too
    got = torch.autograd.grad(ours(targets, [hidden, weight]), [hidden, weight], rates)
    want = torch.autograd.grad(plain(targets, [hidden, weight])[0], [hidden, weight], rates)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want))


def test_a_token_that_is_certain():
    """The rest of its probability counts, and so does a token that is all but impossible."""
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.eye(8).to(dtype).requires_grad_()
        hidden = torch.zeros(2, 8)
        hidden[0, 3], hidden[1, 3] = 12.0, 60.0
        inputs, targets = [hidden.to(dtype).requires_grad_(), weight], torch.tensor([3, 5])
        got, wanted = ours(targets, inputs), plain(targets, [x.detach().double() for x in inputs])[0]
        assert torch.allclose(got.double(), wanted, rtol=1e-2, atol=1e-6)
        compare(targets[:1], [inputs[0].detach()[:1].requires_grad_(), weight], to=2e-2)


def test_a_cap_is_made_in_float32():
    """In bfloat16 capped logits near the cap would fall together: steps of 0.125 at 30."""
    targets, inputs = given(dtype=torch.bfloat16, scale=8.0, ignored=())
    exact = [x.detach().double() for x in inputs]
    logits = (inputs[0] @ inputs[1].T).detach().double()  # rounded once, as products are
    capped = (30 * torch.tanh(logits / 30)).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(ours(targets, inputs, softcap=30.0).double(), capped, atol=1e-4)
    assert not torch.allclose(capped, plain(targets, exact, softcap=30.0)[0], atol=1e-4)  # what rounding the products costs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(dtype):
    targets, inputs = given()
    inputs[1] = inputs[1].detach().to(dtype).requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        got = ours(targets, inputs, entropy=True)
        loss = sum(losses(*got))
        loss.backward()  # inside of it, too
    rounded = [x.detach().bfloat16().requires_grad_() for x in inputs]
    wanted = ours(targets, rounded, entropy=True)
    sum(losses(*wanted)).backward()
    assert all(map(torch.equal, got, wanted))
    for x, y in zip(inputs, rounded):
        assert x.grad.dtype == x.dtype and float((x.grad - y.grad.to(x.dtype)).norm() / y.grad.norm()) < 4e-3


def test_types_that_differ():
    """Products are made in the type of the hidden states, as TRL's cast_lm_head_to_fp32 has it."""
    targets, (hidden, weight) = given()
    low = weight.detach().bfloat16().requires_grad_()
    got, wanted = ours(targets, [hidden, low]), ours(targets, [hidden, low.float()])
    assert torch.equal(got, wanted)
    got.sum().backward()
    assert low.grad.dtype == torch.bfloat16


def test_float16_beyond_its_range():
    """Gradients in float32 of losses that a GradScaler has scaled."""
    targets, inputs = given((64,), scale=0.1, ignored=())
    rounded = [x.detach().half().double().requires_grad_() for x in inputs]
    with torch.autocast(DEVICE, torch.float16):
        sum(losses(*ours(targets, inputs, entropy=True))).mul(65536.0).backward()
    sum(losses(*plain(targets, rounded))).mul(65536.0).backward()
    for x, y in zip(inputs, rounded):
        assert float((x.grad.double() - y.grad).norm() / y.grad.norm()) < 5e-3
    inputs[0].grad = inputs[1].grad = None
    with torch.autocast(DEVICE, torch.float16):
        ours(targets, inputs).sum().mul(65536.0).backward()  # inside of it, too
    assert all(x.grad.isfinite().all() for x in inputs) and float(inputs[1].grad.abs().max()) > 65536


def test_a_tied_head():
    torch.manual_seed(0)
    table, ids = torch.randn(101, 16, requires_grad=True), torch.randint(0, 101, (3, 8))
    made = []
    for way in (lambda h, w, t: compact.token_log_probs(h, w, t), lambda h, w, t: plain(t, [h, w])[0]):
        table.grad = None
        way(torch.nn.functional.embedding(ids[:, :-1], table).tanh(), table, ids[:, 1:]).sum().backward()
        made.append(table.grad)
    assert torch.allclose(*made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint(reentrant):
    targets, inputs = given()
    sum(losses(*ours(targets, inputs, entropy=True))).backward()
    wanted = [x.grad.clone() for x in inputs]
    for x in inputs:
        x.grad = None
    sum(losses(*checkpoint(lambda *x: ours(targets, x, entropy=True), *inputs, use_reentrant=reentrant))).backward()
    assert all(torch.equal(x.grad, w) for x, w in zip(inputs, wanted))


def test_backward_passes():
    targets, inputs = given()
    log_probs, entropy = ours(targets, inputs, entropy=True)
    loss = losses(log_probs, entropy)[2]
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, inputs)))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, inputs)
    log_probs = ours(targets, inputs)
    with pytest.raises(RuntimeError, match="gradients of gradients"):
        torch.autograd.grad(log_probs.sum(), inputs[:1], create_graph=True)
    log_probs = ours(targets, inputs)
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_probs.sum().backward()


def test_parts_do_not_change_values():
    """Each row is one product and one softmax, however many are made at a time; one row is another kernel of the library of products."""
    targets, inputs = given((40,), 257, 32, ignored=())
    wanted = [x.detach() for x in ours(targets, inputs, entropy=True)]
    for tokens in (2, 8, 39, 40, 1000):
        for got, want in zip(ours(targets, inputs, entropy=True, tokens=tokens), wanted):
            assert torch.allclose(got, want, rtol=2e-6, atol=2e-6)


def saved_by(call):
    """Bytes of storages that nodes save, each counted once."""
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        found = call()
    return kept, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved(dtype):
    """A gradient of the hidden states; beside it, what was there before and some numbers of each token; no logits."""
    n, width, vocabulary = 48, 32, 1000
    size = n * width * dtype.itemsize
    for trained, entropy, numbers in ((True, False, 4), (True, True, 8), (False, True, 8), (False, False, 0)):
        targets, inputs = given((n,), vocabulary, width, dtype, ignored=())
        inputs[1].requires_grad_(trained)
        before = {x.untyped_storage().data_ptr() for x in (targets, *inputs)}
        kept, _ = saved_by(lambda: ours(targets, inputs, entropy=entropy))
        assert sum(b for at, b in kept.items() if at not in before) == size + numbers * n
        assert before & kept.keys() == (before if trained or entropy else set())
    with torch.no_grad():
        assert not saved_by(lambda: ours(targets, inputs, entropy=True))[0]


@cpu_only
def test_the_peak_is_that_of_some_logits():
    """To the byte: logits of 64 tokens of 512, the gradient made before, two numbers and a mask of all tokens, two numbers of these."""
    n, width, vocabulary, tokens = 512, 32, 30000, 64
    targets, inputs = given((n,), vocabulary, width, ignored=())
    logits, hidden, weight = tokens * vocabulary * 4, *(x.nbytes for x in inputs)
    with compact.Meter() as meter:
        log_probs = ours(targets, inputs, tokens=tokens)
        assert meter.peak == logits + hidden + 9 * n + 8 * tokens
        log_probs.sum().backward()
    # There are now as many logits, of all tokens and a part of the vocabulary, and scaled hidden states.
    assert 0 <= meter.peak - logits - 3 * hidden - weight <= 48 * n
    with compact.Meter() as meter, torch.no_grad():
        ours(targets, inputs, tokens=tokens)
    assert meter.peak == logits + 9 * n + 8 * tokens


def test_what_is_refused():
    targets, (hidden, weight) = given()
    call = compact.token_log_probs
    for error, message, change in (
        (TypeError, "hidden must be a tensor, is a list", {"hidden": [1.0]}),
        (TypeError, "hidden must be of a floating type, is of int64", {"hidden": targets}),
        (TypeError, "targets must be of whole numbers, is of float32", {"targets": targets.float()}),
        (TypeError, "targets must be of whole numbers, is of bool", {"targets": targets > 0}),
        (TypeError, "bias must be a tensor, is a int", {"bias": 1}),
        (ValueError, r"weight \[vocabulary, width\], are \[3, 7, 16\], \[101, 8\]", {"weight": weight[:, :8]}),
        (ValueError, r"are \[3, 7, 16\], \[0, 16\]", {"weight": weight[:0]}),
        (ValueError, r"targets must be \[3, 7\], one for each hidden state, are \[3, 6\]", {"targets": targets[:, 1:]}),
        (ValueError, r"bias must be \[101\], is \[100\]", {"bias": weight[:100, 0]}),
        (ValueError, "temperature must be a number above 0, is 0.0", {"temperature": 0.0}),
        (ValueError, "temperature must be a number above 0, is nan", {"temperature": math.nan}),
        (ValueError, "softcap must be a number above 0, is -3", {"softcap": -3}),
        (ValueError, "tokens must be a whole number from 0 on, is 1.5", {"tokens": 1.5}),
        (ValueError, "tokens must be a whole number from 0 on, is -1", {"tokens": -1}),
    ):
        with pytest.raises(error, match="compact.token_log_probs: .*" + message):
            call(**{"hidden": hidden, "weight": weight, "targets": targets} | change)


@cpu_only  # a GPU's error comes later
def test_a_target_that_is_no_class():
    targets, inputs = given()
    for target in (101, -1, -99):
        targets[1, 2] = target
        with pytest.raises(ValueError, match=rf"a target must be -100 or in \[0, 101\), is {target}"):
            ours(targets, inputs)


class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100, bias=False)

    def forward(self, ids):
        return -compact.token_log_probs(torch.tanh(self.embedding(ids)), self.head.weight, ids).mean()


def test_networks_that_call_it_are_planned():
    rows = compact.plan(Scores(), {"ids": torch.arange(64).view(2, 32)}, policies=("plain", "exact"), optimizer=None, clip=False)["rows"]
    assert len(rows) == 2 and all(row["peak"] > row["weights"] for row in rows)
