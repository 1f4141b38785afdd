# SPDX-License-Identifier: Apache-2.0
"""Which operations' saved tensors codecs may round, operation by operation: gradients near and unbiased, or the same bits."""
import contextlib
import warnings

from _device import cpu_only, DEVICE
from _scopes import EIGHT, FOUR, nothing_is_left  # noqa: F401 - a fixture for all tests
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compact

WIDTH = 64


def rounded(report):
    return [t.name for t in report if not t.parameter and ("quantize" in t.treatment or "pool" in t.treatment)]


def run(f, policy=None, seed=0):
    """A gradient through what `f` makes of a tensor, and what was saved."""
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)).requires_grad_()
    torch.manual_seed(seed)
    saved = compact.saved_tensors(policy or "off", least_elements=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with saved if policy else contextlib.nullcontext():
            y = f(x * 1.0)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5)) if y.dim() else None)
    return x.grad, saved.report()


T = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(9))
W = nn.Parameter(T.clone())
SMALL, INDEX = torch.eye(8), torch.arange(64) % 7

# Backward passes that compare a tensor or divide by it, or read a result that vanishes where a logarithm grows.
EXACT = {
    "amax": lambda y: y.amax(1).pow(2).sum(),
    "global max pool": lambda y: y.reshape(8, 8, 8, 8).amax((2, 3)).sum(),
    "amin": lambda y: y.reshape(8, 8, 64).amin((1, 2)).sum(),
    "max of all": lambda y: y.max(),
    "min of all": lambda y: y.min(),
    "amax of all": lambda y: y.amax(),
    "max along": lambda y: y.max(1)[0].sum(),
    "aminmax": lambda y: sum(y.aminmax(dim=1)).sum(),
    "median": lambda y: y.median(1)[0].sum(),
    "scatter_reduce amax": lambda y: torch.zeros(64, 64)
    .scatter_reduce(0, INDEX[:, None].expand(64, 64), y, "amax", include_self=False)
    .sum(),
    "scatter_reduce mean": lambda y: torch.zeros(64, 64)
    .scatter_reduce(1, INDEX.expand(64, 64), y, "mean", include_self=False)
    .sum(),
    "scatter_reduce prod": lambda y: torch.ones(64, 64).scatter_reduce(1, INDEX.expand(64, 64), y, "prod").sum(),
    "index_reduce amax": lambda y: torch.zeros(64, 64).index_reduce(1, INDEX, y, "amax").sum(),
    "norm inf": lambda y: torch.linalg.vector_norm(y, float("inf"), dim=1).sum(),
    "norm 2": lambda y: y.norm(dim=1).sum(),
    "norm 1": lambda y: y.norm(p=1, dim=1).sum(),
    "cdist": lambda y: torch.cdist(y, y.detach() * 2).sum(),
    "cdist inf": lambda y: torch.cdist(y, y.detach() * 2, p=float("inf")).sum(),
    "pdist": lambda y: F.pdist(y).sum(),
    "sqrt": lambda y: (y.relu() + 1e-4).sqrt().sum(),
    "sqrt in place": lambda y: (y.relu() + 1e-4).sqrt_().sum(),
    "sqrt of a square": lambda y: (y.pow(2) + 1e-6).sqrt().sum(),
    "power of a half": lambda y: ((y**2 + 1e-3) ** 0.5).sum(),
    "rsqrt": lambda y: (y.pow(2) + 1e-3).rsqrt().sum(),
    "quotient": lambda y: (T / (y.pow(2) + 1e-3)).sum(),
    "reciprocal": lambda y: (1 / (1 + y.exp())).sum(),
    "negative power": lambda y: (y.exp() ** -1.5).sum(),
    "power of 2": lambda y: (2**y).sum(),
    "log of softmax": lambda y: (y.softmax(1) + 1e-8).log().sum(),
    "log of sigmoid": lambda y: y.sigmoid().log().sum(),
    "log of 1 - sigmoid": lambda y: (1 - (y * 10).sigmoid() + 1e-8).log().sum(),
    "log of 1 - tanh^2": lambda y: (1 - (y * 5).tanh().pow(2) + 1e-6).log().sum(),
    "acos": lambda y: torch.acos(y.tanh() * 0.999).sum(),
    "root of a product with itself": lambda y: (y * y + 1e-8).sqrt().sum(),
    "root of addcmul": lambda y: torch.addcmul(torch.full_like(y, 1e-8), y, y).sqrt().sum(),
    "asin": lambda y: torch.asin(y.tanh() * 0.999).sum(),
    "atanh": lambda y: torch.atanh(y.tanh() * 0.999).sum(),
    "logit": lambda y: torch.logit(y.sigmoid()).sum(),
    "bce of sigmoid": lambda y: F.binary_cross_entropy((10 * y).sigmoid(), (T > 0).float()),
    "tanh beside a product": lambda y: (lambda a: (1 - a.pow(2) + 1e-6).log().sum() + (a @ W).sum())((y * 5).tanh()),
    "ctc": lambda y: F.ctc_loss(
        y.reshape(64, 2, 32).log_softmax(2), torch.tensor([[1, 2], [3, 4]]), (64, 64), (2, 2)
    ),
    "xlogy": lambda y: (lambda p: -torch.xlogy(p, p).sum())(y.mul(5).softmax(1)),
    "prod": lambda y: y.reshape(512, 8).prod(1).sum(),
    "cumprod": lambda y: y.cumprod(1).sum(),
    "logsumexp": lambda y: y.mul(30).logsumexp(1).sum(),
    "logcumsumexp": lambda y: y.logcumsumexp(1).sum(),
    "logaddexp": lambda y: torch.logaddexp(y * 20, y.flip(1) * 20).sum(),
    "maximum": lambda y: torch.maximum(y, T).sum(),
    "abs": lambda y: y.abs().sum(),
    "clamp": lambda y: y.clamp(-0.5, 0.5).sum(),
    "clamp below": lambda y: y.clamp(min=0).sum(),
    "threshold": lambda y: F.threshold(y, 0.0, 20).sum(),
    "hardshrink": lambda y: F.hardshrink(y).sum(),
    "softplus": lambda y: F.softplus(y * 30).sum(),
    "masked log_softmax": lambda y: y.masked_fill(T > 1, -torch.inf).log_softmax(1).masked_fill(T > 1, 0).sum(),
    "huber": lambda y: F.huber_loss(y, T),
    "l1": lambda y: F.l1_loss(y, T),
    "mse": lambda y: F.mse_loss(y, T),
    "cross entropy": lambda y: F.cross_entropy(y, INDEX),
}

# Read linearly: mean gradients are those without codecs.
LINEAR = {
    "mm": lambda y: torch.cat([y @ y.detach().flip(0), y.detach().t() @ y]),
    "bmm": lambda y: torch.bmm(y.view(4, 16, 64), y.flip(0).view(4, 64, 16)),
    "mul": lambda y: y * y.roll(7, 0),
    "addcmul": lambda y: torch.addcmul(y, y.flip(0), y.flip(1)),
    "lerp": lambda y: torch.lerp(y, y.flip(0), y.flip(1)),
    "dot": lambda y: y.flatten().dot(y.flatten().flip(0)),
    "convolution": lambda y: F.conv2d(y.view(1, 4, 32, 32), y.flatten()[: 4 * 4 * 9].clone().view(4, 4, 3, 3)),
    "var": lambda y: y.var(1),
    # The range of a logarithm is wide: one gradient is far off, the mean is not.
    "p log p": lambda y: (lambda p: p * p.log())(y.mul(5).softmax(1)),
    "p log (p + c)": lambda y: (lambda p: p * (p + 1e-8).log())(y.mul(5).softmax(1)),
    "p log (p + c) of sigmoids": lambda y: (lambda p: p * (p + 1e-8).log() + (1 - p) * (1 - p + 1e-8).log())(y.mul(10).sigmoid()),
    "p log of a mean": lambda y: (lambda p, q: p * ((p + 1e-8).log() - ((p + q) / 2 + 1e-8).log()))(y.mul(5).softmax(1), T.softmax(1)),
    "square beside a product": lambda y: y.pow(2) + y * y.flip(0),
}

# Read smoothly.
SMOOTH = {
    "poisson": lambda y: F.poisson_nll_loss(y, T.abs()),
    "inv": lambda y: torch.linalg.inv(y[:8, :8] @ y[:8, :8].detach().clone().t() + 20 * SMALL).sum(),
    "kl_div of targets": lambda y: F.kl_div(T.log_softmax(1), y.mul(5).softmax(1), reduction="sum"),
    "kl_div": lambda y: F.kl_div(y.log_softmax(1), T.softmax(1), reduction="sum"),
    "gelu": lambda y: F.gelu(y),
    "gelu of tanh": lambda y: F.gelu(y, approximate="tanh"),
    "silu": lambda y: F.silu(y * 30),
    "mish": lambda y: F.mish(y),
    "glu": lambda y: F.glu(y),
    "elu": lambda y: F.elu(y),
    "celu": lambda y: F.celu(y, 2.0),
    "cube": lambda y: y.pow(3),
    "layer_norm": lambda y: F.layer_norm(y, (64,)),
    "group_norm": lambda y: F.group_norm(y.view(4, 8, 128), 4),
    "batch_norm": lambda y: F.batch_norm(y, None, None, training=True),
    "std": lambda y: y.std(1),
    "attention": lambda y: F.scaled_dot_product_attention(*(t.view(2, 2, 16, 64) for t in (y, y.flip(0), y.flip(1)))),
    "weights of attention": lambda y: y.view(2, 4, 8, 64).softmax(-1),
    "sigmoid of a gate": lambda y: y.sigmoid() * y.flip(0),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_is_compared_or_divided_by_is_kept(name):
    f = EXACT[name]
    try:
        wanted, _ = run(f)
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        pytest.skip(f"this torch has no gradient of {name}")
    got, report = run(f, "gact-l1")
    if DEVICE != "cpu" and name == "scatter_reduce prod":  # whose factors come in any order
        torch.testing.assert_close(got, wanted)
    else:
        assert torch.equal(got, wanted), str(report)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_reads_are_unbiased(name):
    f, runs = LINEAR[name], 64
    wanted, _ = run(f)
    errors = []
    for seed in range(runs):
        got, report = run(f, FOUR, seed)
        errors.append(got - wanted)
    assert rounded(report)
    one = sum(e.norm() ** 2 for e in errors) / runs
    assert 0 < one < ((3 if "log" in name else 0.35) * wanted.norm()) ** 2
    # The mean of unbiased errors has 1 / runs of one error's square; that of these has 200 and more independent
    # numbers, so that 1.6 times as much is beyond five deviations.
    assert (sum(errors) / runs).norm() ** 2 < 1.6 * one / runs


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_reads_are_near(name):
    f = SMOOTH[name]
    wanted, _ = run(f)
    for policy, bound in ((EIGHT, 0.06), (FOUR, 0.6)):
        got, report = run(f, policy)
        assert rounded(report), str(report)
        assert 0 < (got - wanted).norm() < bound * wanted.norm()


# ---- Every layer of torch.nn that has no weights of its own.

LAYERS = {
    "AdaptiveAvgPool1d": 4, "AdaptiveAvgPool2d": 4, "AdaptiveAvgPool3d": 2,
    "AdaptiveMaxPool1d": 4, "AdaptiveMaxPool2d": 4, "AdaptiveMaxPool3d": 2,
    "AvgPool1d": 2, "AvgPool2d": 2, "AvgPool3d": 2, "MaxPool1d": 2, "MaxPool2d": 2, "MaxPool3d": 2,
    "FractionalMaxPool2d": 2, "FractionalMaxPool3d": 2, "LPPool1d": (2, 2), "LPPool2d": (2, 2), "LPPool3d": (2, 2),
    "Threshold": (0.1, 20), "MultiheadAttention": (64, 4), "Softmax": 1, "LogSoftmax": 1, "Softmin": 1,
}  # fmt: skip
ACTIVATIONS = [n for n in nn.modules.activation.__all__ if n not in ("MultiheadAttention", "RReLU")]
POOLINGS = [n for n in nn.modules.pooling.__all__ if "Unpool" not in n]


@pytest.mark.parametrize("name", ACTIVATIONS + POOLINGS)
def test_layers_without_weights(name):
    given = LAYERS.get(name, ())
    fractional = {"output_size": 4} if name.startswith("Fractional") else {}
    layer = getattr(nn, name)(*(given if isinstance(given, tuple) else (given,)), **fractional)
    shapes = {"1d": (8, 8, 64), "2d": (4, 4, 16, 16), "3d": (2, 4, 8, 8, 8)}
    view = shapes.get(name[-2:], (2, 2, 32, 32) if name == "Softmax2d" else (64, 64))

    def f(y):
        torch.manual_seed(1)  # of fractional pooling
        return layer(y.reshape(view))

    wanted, _ = run(f)
    got, report = run(f, EIGHT)
    if rounded(report):
        assert (got - wanted).norm() < 0.06 * wanted.norm()
    else:
        assert torch.equal(got, wanted)
    if name in POOLINGS and "LP" not in name or name in ("ReLU", "LeakyReLU", "ReLU6", "Hardtanh", "Tanhshrink", "SELU"):
        assert torch.equal(got, wanted)


POSITIVE = torch.rand(64, WIDTH, generator=torch.Generator().manual_seed(4)) + 0.1
ONES = torch.where(T > 0, 1.0, -1.0)
LOSSES = {
    "AdaptiveLogSoftmaxWithLoss": lambda loss, y: nn.AdaptiveLogSoftmaxWithLoss(64, 100, [20, 50])(y, INDEX).loss,
    "BCELoss": lambda loss, y: loss(y.sigmoid(), (T > 0).float()),
    "LinearCrossEntropyLoss": lambda loss, y: nn.LinearCrossEntropyLoss(64, 10)(y, INDEX),
    "CTCLoss": lambda loss, y: loss(
        y.view(64, 2, 32).log_softmax(2), torch.tensor([[1, 2], [3, 4]]), (64, 64), (2, 2)
    ),
    "CosineEmbeddingLoss": lambda loss, y: loss(y, T, ONES[:, 0]),
    "CrossEntropyLoss": lambda loss, y: loss(y, INDEX),
    "GaussianNLLLoss": lambda loss, y: loss(y, T, POSITIVE),
    "MarginRankingLoss": lambda loss, y: loss(y, T, ONES),
    "MultiLabelMarginLoss": lambda loss, y: loss(y, INDEX.expand(64, 64).contiguous()),
    "MultiMarginLoss": lambda loss, y: loss(y, INDEX),
    "NLLLoss": lambda loss, y: loss(y.log_softmax(1), INDEX),
    "NLLLoss2d": lambda loss, y: loss(y.view(4, 16, 8, 8).log_softmax(1), INDEX.repeat(4).view(4, 8, 8)),
    "TripletMarginLoss": lambda loss, y: loss(y, T, T.flip(0)),
    "TripletMarginWithDistanceLoss": lambda loss, y: loss(y, T, T.flip(0)),
    "KLDivLoss": lambda loss, y: loss(y.log_softmax(1), T.softmax(1)),
    "PoissonNLLLoss": lambda loss, y: loss(y, POSITIVE),
    "SoftMarginLoss": lambda loss, y: loss(y, ONES),
    "HingeEmbeddingLoss": lambda loss, y: loss(y, ONES),
}


@pytest.mark.parametrize("name", nn.modules.loss.__all__)
@pytest.mark.filterwarnings("ignore")
def test_losses_have_their_gradients(name):
    def f(y):
        torch.manual_seed(1)  # of weights
        loss = None if name in ("AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss") else getattr(nn, name)()
        return LOSSES.get(name, lambda loss, y: loss(y, POSITIVE))(loss, y)

    wanted, _ = run(f)
    got, report = run(f, EIGHT)
    if rounded(report):
        assert (got - wanted).norm() < 0.06 * wanted.norm(), str(report)
    else:
        assert torch.equal(got, wanted)


# ---- Values that codes do not hold.


@cpu_only  # a GPU would have to be waited for: there 256 neighbours of it read back as NaN
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_infinities_come_back(value):
    def f(y):
        bad = T.clone()
        bad[5, 7] = value
        return torch.where(bad.isfinite(), y * bad, 0).sum() + (y * bad)[:3].sum()

    wanted, _ = run(f)
    got, report = run(f, FOUR)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    assert [t.treatment for t in report if t.bytes == 4 * T.numel()].count("keep") == 2


def test_masks_of_attention_are_kept():
    mask = torch.where(T[:16, :16] > 0, 0.0, -torch.inf)
    mask[:, 0] = 0

    def f(y):
        q, k, v = (t.view(2, 2, 16, 64) for t in (y, y.flip(0), y.flip(1)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    wanted, _ = run(f)
    got, _ = run(f, EIGHT)
    assert (got - wanted).norm() < 0.06 * wanted.norm()


# ---- Names that anybody may give.


def test_functions_of_others_are_not_operations():
    class leaky_relu(torch.autograd.Function):  # noqa: N801
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    class max_pool2d_with_indices(torch.autograd.Function):  # noqa: N801
        @staticmethod
        def forward(ctx, x):
            places = (torch.arange(x.numel()) * 100_000).view_as(x)
            ctx.save_for_backward(places)
            return x * places * 1e-7

        @staticmethod
        def backward(ctx, g):
            (places,) = ctx.saved_tensors
            return g * places * 1e-7

    class _to_copy(torch.autograd.Function):  # noqa: N801
        @staticmethod
        def forward(ctx, x):
            return (x * 3).to(torch.bfloat16)

        @staticmethod
        def backward(ctx, g):
            return g.float() * 3

    class CheckpointFunction(torch.autograd.Function):
        forward, backward = leaky_relu.forward, leaky_relu.backward

    weight = nn.Parameter(T.clone())
    for f in (
        lambda y: leaky_relu.apply(y).sum(),
        lambda y: max_pool2d_with_indices.apply(y).sum(),
        lambda y: CheckpointFunction.apply(y).sum(),
        lambda y: (_to_copy.apply(weight) @ y.to(torch.bfloat16)).sum(),
    ):
        wanted, _ = run(f)
        for policy in (compact.policy_text("off") + "slot nothing = keep", "slot *.leaky_relu.* = quantize:bits=2"):
            got, report = run(f, policy)
            assert torch.equal(got, wanted), str(report)


def test_operations_of_other_libraries_are_not_torchs():
    library = torch.library.Library("compact_test_names", "DEF")
    library.define("relu(Tensor x) -> Tensor")

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.detach().relu() + 1
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    library.impl("relu", Square.apply, "Autograd")
    wanted, _ = run(lambda y: torch.ops.compact_test_names.relu(y).sum())
    got, report = run(lambda y: torch.ops.compact_test_names.relu(y).sum(), FOUR)
    assert torch.equal(got, wanted) and report.exact_for == {"Square": T.numel() * 4}


# ---- Reports.


def test_reports_name_operations_that_read_exactly():
    x = torch.randn(64, 64, requires_grad=True)
    with compact.saved_tensors(FOUR, least_elements=16) as saved:
        y = x * 1.0
        z = y.exp().sum() + y.abs().sum() + (y @ W).sum()
    report = saved.report()
    # The product reads the copy that abs needs.
    assert report.exact_for == {"exp": 64 * 64 * 4, "abs": 64 * 64 * 4} and saved.stored == 2 * 64 * 64 * 4
    assert "32,768 bytes are kept though the policy says codecs" in str(report) and "abs 16,384" in str(report)
    z.backward()
    assert not saved.live_bytes
    with compact.saved_tensors("off", least_elements=16) as saved:
        (x * 1.0).exp()
    assert not saved.report().exact_for and "though" not in str(saved.report())


@cpu_only
def test_reports_name_the_workspace_of_an_lstm():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(64, 64), torch.randn(16, 4, 64)
    with compact.saved_tensors(FOUR, model=lstm) as saved:
        lstm(x)[0].sum().backward()
    assert saved.report().exact_for["mkldnn_rnn_layer"] > x.numel() * 4


def test_reports_say_what_others_hold():
    x = torch.randn(64, 64, requires_grad=True)
    with compact.saved_tensors(FOUR, least_elements=16) as saved:
        y = (x @ W).sin()
        with torch.autograd.graph.save_on_cpu():
            y = ((y @ W).exp() @ W).sum()
        assert saved.report().under_other_hooks == 4  # two products, exp, sum
    assert saved.report().under_other_hooks == 4 and "4 operations ran inside of other hooks" in str(saved.report())
    for reentrant in False, True:
        with saved:
            torch.utils.checkpoint.checkpoint(lambda y: (y @ W).exp(), x * 1, use_reentrant=reentrant).sum()
        report = saved.report()
        assert report.under_other_hooks == (0 if reentrant else 2)
        assert ("reentrant checkpoints saves nothing until" in str(report)) == reentrant
    with saved:
        x.exp()
    assert saved.report().under_other_hooks == 0 and "hooks" not in str(saved.report())


def test_what_is_read_exactly_once_is_held_once():
    """A rounded copy goes where another operation needs the tensor, and comes where only near values are needed."""
    x = torch.randn(64, 64, requires_grad=True)
    size, codes = 64 * 64 * 4, 64 * 64 // 2 + 16 * 4
    for f, held in (
        (lambda y: (y @ W).sum() + y.abs().sum(), size),
        (lambda y: y.abs().sum() + (y @ W).sum(), size),
        (lambda y: y.pow(2).sum() + (y @ W).sum(), codes),
        (lambda y: (y @ W).sum() + y.pow(2).sum(), codes),
        (lambda y: y.pow(2).sum() + (y @ W).sum() + y.abs().sum(), size),
        (lambda y: y.pow(2).sum() + F.leaky_relu(y).sum() + (y @ W).sum(), size),
    ):
        with compact.Meter() as meter, compact.saved_tensors(FOUR, least_elements=16) as saved:
            loss = f(x * 1.0)
            assert saved.stored == saved.live_bytes == held and held <= meter.now < held + 64, str(saved.report())
        x.grad = None
        loss.backward()
        assert saved.live_bytes == 0
