# SPDX-License-Identifier: Apache-2.0
"""Batch norms divide by a scale of each channel: their backward pass reads codes in which no group has values of two channels, however these lie in memory."""
import contextlib

from _scopes import distance, nothing_is_left  # noqa: F401 - a fixture for all tests
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compact

BATCH, CHANNELS, SIDE = 16, 32, 12
SPREAD = 1.5  # standard deviation of the logarithms of channels' sizes
BOUND = {8: 0.02, 4: 0.3}  # of a gradient's relative error: normal values in groups of 256 have 0.01 and 0.16
REBUILT = "\nslot role:cheap = recompute"


class Spread(nn.Module):
    """A product whose channels differ in size, then what `between` says, and a batch norm."""

    def __init__(self, maps, between):
        super().__init__()
        torch.manual_seed(0)
        self.product = nn.Conv2d(8, CHANNELS, 3, padding=1) if maps else nn.Linear(8, CHANNELS)
        sizes = torch.exp(SPREAD * torch.randn(CHANNELS))
        with torch.no_grad():
            self.product.weight.mul_(sizes.view(-1, *[1] * (self.product.weight.dim() - 1)))
            self.product.bias.zero_()
        self.norm = (nn.BatchNorm2d if maps else nn.BatchNorm1d)(CHANNELS, momentum=1.0)
        self.other = nn.Conv2d(CHANNELS, CHANNELS, 1) if maps else nn.Linear(CHANNELS, CHANNELS)
        with torch.no_grad():
            self.other.weight.mul_(1e-3)
        self.between = between
        shape = (BATCH, CHANNELS, SIDE, SIDE) if maps else (BATCH * SIDE * SIDE, CHANNELS)
        self.factor = nn.Parameter(torch.randn(shape), requires_grad=False)  # as parameters are, it is not rounded

    def forward(self, x):
        return (self.between(self, self.product(x)) * self.factor).sum()


BETWEEN = {
    "alone": lambda m, y: m.norm(y),
    "after a product of its input": lambda m, y: m.other(y) + m.norm(y),
    "before a product of its input": lambda m, y: m.norm(y) + m.other(y),
    "of a ReLU": lambda m, y: m.norm(F.relu(y)),
    "of a GELU": lambda m, y: m.norm(F.gelu(y)),
    "of half of it": lambda m, y: torch.cat([F.batch_norm(y[:, 16:], None, None, m.norm.weight[16:], m.norm.bias[16:], True), y[:, :16]], 1),
    "in evaluation": lambda m, y: m.norm.eval()(y),
}


def data(layout):
    g = torch.Generator().manual_seed(2)
    if layout == "rows":
        return torch.randn(BATCH * SIDE * SIDE, 8, generator=g)
    x = torch.randn(BATCH, 8, SIDE, SIDE, generator=g)
    return x.to(memory_format=torch.channels_last) if layout == "channels_last" else x


def gradients(layout, between, policy=None):
    model = Spread(layout != "rows", BETWEEN[between])
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        model.norm(model.product(data(layout)))  # has the statistics of an evaluation
    saved = compact.saved_tensors(policy, model=model, least_elements=16) if policy else None
    torch.manual_seed(3)
    with saved or contextlib.nullcontext():
        loss = model(data(layout))
    report = saved.report() if saved else []
    live = saved.live_bytes if saved else 0
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, report, live


@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("layout", ["nchw", "channels_last", "rows"])
@pytest.mark.parametrize("between", BETWEEN)
def test_gradients_are_near_however_channels_differ(between, layout, bits, rebuilt):
    if between == "of a GELU" and not rebuilt and layout == "rows":
        pytest.skip("what a GELU reads beside a linear layer is measured by the largest of its neighbours")
    wanted, _, _ = gradients(layout, between)
    ours, report, live = gradients(layout, between, f"slot * = quantize:bits={bits}" + REBUILT * rebuilt)
    assert any("along=channels" in t.treatment for t in report), [(t.name, t.treatment) for t in report]
    assert sum(t.stored for t in report) == live
    for name, gradient in wanted.items():
        if name == "product.bias" and between != "in evaluation":
            continue  # 0 but for rounding: a norm takes means away
        assert distance({name: ours[name]}, {name: gradient}) < BOUND[bits], name


class Between(nn.Module):
    """A convolution whose channels differ in size and functions of its maps, which no name keeps alive."""

    def __init__(self, function, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.product, self.function = nn.Conv2d(8, CHANNELS, 3, padding=1).to(dtype), function
        with torch.no_grad():
            self.product.weight.mul_(torch.exp(SPREAD * torch.randn(CHANNELS)).view(-1, 1, 1, 1))
        self.factor = nn.Parameter(torch.randn(BATCH, CHANNELS, SIDE, SIDE), requires_grad=False)

    def forward(self, x):
        return self.function(self.product(x), self.factor)


def norm(y):
    return F.batch_norm(y, None, None, None, None, True)


@pytest.mark.parametrize(("function", "dtype"), [
    (lambda y, f: (norm(F.silu(y)) * f).sum(), torch.float32),
    (lambda y, f: (norm(F.gelu(y).contiguous(memory_format=torch.channels_last)) * f).sum(), torch.float32),
    (lambda y, f: (norm(F.gelu(y).permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)) * f).sum(), torch.float32),
    (lambda y, f: 1e-3 * F.silu(y).float().sum() + (norm(y[:, :16].float()) * f[:, :16]).sum(), torch.bfloat16),
    (lambda y, f: (norm(y[:, :16].float()) * f[:, :16]).sum() + 1e-3 * F.silu(y).float().sum(), torch.bfloat16),
    (lambda y, f: 1e-4 * F.gelu(y).float().sum() + (norm(y.view(BATCH, CHANNELS, 2, -1).sum(2, dtype=torch.float32)) * f[:, :, :6].flatten(2)).sum(), torch.bfloat16),
])  # fmt: skip
@pytest.mark.parametrize("alive", [False, True])
def test_operations_that_change_the_layout(function, dtype, alive):
    """No batch norm reads a tensor that is rebuilt from codes of other rows, or from codes whose values are gone."""
    known = []
    model = Between((lambda y, f: (known.append(y.detach()), function(y, f))[1]) if alive else function, dtype)
    x = torch.randn(BATCH, 8, SIDE, SIDE, generator=torch.Generator().manual_seed(2)).to(dtype)
    grads = []
    for policy in (None, "slot * = quantize:bits=8" + REBUILT):
        with compact.saved_tensors(policy, model=model, least_elements=16) if policy else contextlib.nullcontext():
            loss = model(x)
        model.product.weight.grad = None
        loss.backward()
        grads.append(model.product.weight.grad.float())
        known.clear()
    error = ((grads[1] - grads[0]).norm() / grads[0].norm()).item()
    assert error < 1.5 * BOUND[8], error


@pytest.mark.parametrize("layout", ["nchw", "channels_last", "rows"])
@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_are_those_of_whole_rows_of_channels(layout, bits):
    values = BATCH * SIDE * SIDE
    row = values * bits // 8 + -(-values // 256) * 4
    for policy in ("", REBUILT):
        _, report, _ = gradients(layout, "alone", f"slot * = quantize:bits={bits}" + policy)
        coded = [t for t in report if t.treatment == f"quantize:bits={bits},along=channels"]
        assert [t.stored for t in coded] == [CHANNELS * row], [(t.name, t.treatment, t.stored) for t in report]


class OverChannels(nn.Module):
    def forward(self, y):
        return over_channels(y)


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm2d(24), OverChannels])
def test_plans_count_them(norm):
    model = nn.Sequential(nn.Conv2d(3, 24, 3), norm(), nn.ReLU(), nn.Conv2d(24, 24, 3), norm())
    x = torch.randn(5, 3, 17, 17)
    policy = "slot * = quantize:bits=4"
    stored = []
    for device in ("cpu", "meta"):
        model, x = model.to(device), x.to(device)
        with compact.saved_tensors(policy, model=model) as saved:
            loss = model(x).sum()
        stored.append([(t.name, t.treatment, t.stored) for t in saved.report()])
        del loss
    assert stored[0] == stored[1]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_few_values_of_a_channel_are_held_whole_where_that_is_less(batch):
    norm = nn.BatchNorm1d(4096).eval()
    product = nn.Linear(4, 4096)
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Sequential(product, norm).to(dtype)
        with compact.saved_tensors("slot * = quantize:bits=4", model=model) as saved:
            loss = model(torch.randn(batch, 4, dtype=dtype)).float().sum()
        kept = batch * 4096 * dtype.itemsize
        codes = 4096 * (-(-batch * 4 // 8) + 4)
        assert max(t.stored for t in saved.report()) == min(kept, codes)
        del loss


def test_instances_are_kept_apart_too():
    def step(policy):
        torch.manual_seed(0)
        sizes = torch.exp(SPREAD * torch.randn(6, CHANNELS, 1, 1))
        y = (torch.randn(6, CHANNELS, 9, 9) * sizes).requires_grad_()
        with compact.saved_tensors(policy) if policy else contextlib.nullcontext():
            z = F.batch_norm(y * 1.0, None, None, None, None, True)
            loss = (F.instance_norm(y * 1.0) * torch.randn(y.shape)).sum() + 1e-3 * z.pow(3).sum()
        loss.backward()
        return {"y": y.grad * sizes}

    assert distance(step("slot * = quantize:bits=8"), step(None)) < BOUND[8]


def spread(sizes, dims):
    """Normal values, of which those of another index in these dimensions have another size."""
    g = torch.Generator().manual_seed(4)
    return torch.randn(sizes, generator=g), torch.exp(3 * torch.randn([n if d in dims else 1 for d, n in enumerate(sizes)], generator=g))


def written_rms(y, d=-1, given=lambda r, y: r):
    return y * given(torch.rsqrt(y.pow(2).mean(d, keepdim=True) + 1e-12), y)


def over_channels(y):
    """The layer norm of ConvNeXt after a convolution: in memory an image's channels still lie one after the other."""
    return F.layer_norm(y.permute(0, 2, 3, 1), (y.size(1),)).permute(0, 3, 1, 2)


def deviation(y, d):
    """A function whose gradient is of one size however large the values are."""
    return y.std(d, keepdim=True) / y.detach().std(d, keepdim=True)


@pytest.mark.parametrize("way", ["held", "rebuilt", "rebuilt beside codes"])
@pytest.mark.parametrize(("function", "sizes", "dims", "layout"), [
    (lambda y: F.layer_norm(y, (16,)), (8, 32, 16), (0, 1), None),
    (lambda y: F.layer_norm(y, (5, 7)), (64, 3, 5, 7), (0, 1), None),
    (lambda y: F.layer_norm(y.permute(0, 2, 3, 1), (48,)).permute(0, 3, 1, 2), (2, 48, 7, 7), (2, 3), None),
    (lambda y: F.layer_norm(y[:, :, 0], (24,)).unsqueeze(2), (32, 8, 2, 24), (0, 1), None),
    (lambda y: F.rms_norm(y, (64,), eps=1e-12), (16, 32, 64), (0, 1), None),
    (written_rms, (16, 32, 64), (0, 1), None),
    (lambda y: F.group_norm(y.flatten(1, 2), 16).view_as(y), (8, 16, 1, 7, 7), (0, 1), None),
    (lambda y: F.group_norm(y.flatten(1, 2), 4).view_as(y), (8, 4, 4, 7, 7), (0, 1), None),
    (lambda y: F.group_norm(y.flatten(1, 2), 8).unflatten(1, (8, 2)), (8, 8, 2, 7, 7), (1,), torch.channels_last),
    (lambda y: y / y.detach().std(-1, keepdim=True) + y.std(-1, keepdim=True) / y.detach().std(-1, keepdim=True), (64, 32, 16), (0, 1), None),
    (over_channels, (8, 96, 7, 7), (0, 2, 3), None),
    (over_channels, (8, 40, 5, 5), (0, 2, 3), None),
    (lambda y: over_channels(y.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)), (8, 64, 8, 8), (0, 2, 3), None),
    (lambda y: F.layer_norm(y.permute(0, 2, 3, 1).contiguous(), (64,)).permute(0, 3, 1, 2), (8, 64, 8, 8), (0, 2, 3), None),
    (lambda y: F.layer_norm(y.transpose(1, 2).contiguous(), (64,)).transpose(1, 2), (8, 64, 4, 64), (0, 1, 2), None),
    (lambda y: F.layer_norm(torch.cat([y, y], -1), (32,))[..., :16], (8, 64, 16), (0, 1), None),
    (lambda y: F.layer_norm(F.unfold(y.unsqueeze(2), (1, 1)), (64,)), (8, 64, 64), (0, 1), None),
    (lambda y: F.layer_norm(y.float(), (16,)), (8, 64, 16), (0, 1), torch.bfloat16),
    (lambda y: F.layer_norm(y.transpose(1, 2), (40,)).transpose(1, 2), (16, 40, 24), (0, 2), None),
    (lambda y: F.layer_norm(y.permute(0, 2, 1, 3), (40, 9)).permute(0, 2, 1, 3), (8, 40, 24, 9), (0, 2), None),
    (lambda y: torch.cat([F.layer_norm(part, (32,)) for part in y.chunk(3, 1)], 1), (8, 48, 32), (0, 1), None),
    (lambda y: deviation(y, 1), (8, 40, 7, 7), (0, 2, 3), None),
    (lambda y: deviation(y[:, :20], 1) + deviation(y[:, 20:], 1), (8, 40, 7, 7), (0, 2, 3), None),
    (lambda y: deviation(y, (1, 3)), (8, 9, 6, 7), (0, 2), None),
    (lambda y: deviation(y, (1, 3)), (6, 9, 6, 7, 5), (0, 2, 4), None),
    (lambda y: F.group_norm(y.flatten(1, 2), 8).unflatten(1, (8, 12)), (8, 8, 12, 7, 7), (0, 1), torch.channels_last),
    (lambda y: F.group_norm(y.flatten(1, 2), 8).unflatten(1, (8, 2)), (8, 8, 2, 7, 7), (0, 1), torch.channels_last),
    (lambda y: written_rms(y, 1), (8, 40, 7, 7), (0, 2, 3), None),
    (lambda y: written_rms(y, -1, torch.Tensor.expand_as), (16, 32, 64), (0, 1), None),
    (lambda y: written_rms(y, 0), (512, 32), (1,), None),
    (lambda y: torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-12).expand_as(y) * y, (16, 32, 64), (0, 1), None),
    (lambda y: torch.var_mean(y, (1, 2), keepdim=True)[0] / y.detach().var((1, 2), keepdim=True), (512, 4, 5), (0,), None),
    (lambda y: y.var(0, keepdim=True) / y.detach().var(0, keepdim=True), (512, 32), (1,), None),
])  # fmt: skip
def test_whatever_is_divided_by_a_scale_of_its_own_is_apart(function, sizes, dims, layout, way):
    x, scale = spread(sizes, dims)
    grads = []
    for scope in (contextlib.nullcontext(), compact.saved_tensors("slot * = quantize:bits=8" + REBUILT * (way != "held"), least_elements=16)):
        y = (x * scale).requires_grad_()
        with scope:
            dtype = layout if isinstance(layout, torch.dtype) else torch.float32
            z = (y.reshape(-1, 1).to(dtype) @ torch.ones(1, 1, dtype=dtype)).view(sizes)  # a product, which is not rebuilt
            if isinstance(layout, torch.memory_format):
                z = z.flatten(1, 2).contiguous(memory_format=layout).unflatten(1, (sizes[1], -1))
            out = function(z)
            if "beside" in way:  # codes of what the norm's input is made of, for a reader that divides nothing
                out = out + 1e-30 * F.silu(z).sum()
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
        grads.append(y.grad * scale)  # the gradient of a row is as large as the row is small
    along = [d for d in range(x.dim()) if d not in dims]
    off = (grads[1] - grads[0]).square().sum(along).sqrt() / grads[0].square().sum(along).sqrt()
    assert off.max() < 5 * BOUND[8], off.max()


@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("reversed_", [False, True])
def test_norms_over_other_dimensions_of_one_tensor(reversed_, rebuilt):
    x, scale = spread((512, 8, 4), (2,))
    grads = []
    for scope in (contextlib.nullcontext(), compact.saved_tensors("slot * = quantize:bits=8" + REBUILT * rebuilt)):
        y = (x * scale).requires_grad_()
        with scope:
            z = (y.reshape(-1, 1) @ torch.ones(1, 1)).view(y.shape)
            norms = [lambda: 0 * norm(z), lambda: norm(z.transpose(1, 2)).transpose(1, 2)]
            out = sum(one() for one in (norms[::-1] if reversed_ else norms))
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
        grads.append(y.grad * scale)
    off = (grads[1] - grads[0]).square().sum((0, 1)) / grads[0].square().sum((0, 1))
    assert off.max().sqrt() < BOUND[8]


def test_no_norm_reads_what_is_rebuilt_from_codes_of_other_rows():
    """Codes of channels, a copy in another layout, and a reader of channels that comes last."""
    x, scale = spread((8, 4, 16, 64), (0, 1, 2))
    wide = [lambda z: torch.cat([z, z], -1), lambda z: (lambda y: torch.cat([y, y], -1))(z.transpose(1, 2).contiguous()).transpose(1, 2)]
    for widen in wide:
        for first in (False, True):
            grads = []
            for scope in (contextlib.nullcontext(), compact.saved_tensors("slot * = quantize:bits=8" + REBUILT, least_elements=16)):
                y = (x * scale).requires_grad_()
                with scope:
                    z = (y.reshape(-1, 1) @ torch.ones(1, 1)).view(x.shape)
                    reads = [lambda: 1e-30 * F.silu(z).sum(), lambda: F.layer_norm(widen(z), (128,))]
                    out = sum(read() for read in (reads[::-1] if first else reads))
                (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
                grads.append(y.grad * scale)
            off = (grads[1] - grads[0]).square().sum(-1).sqrt() / grads[0].square().sum(-1).sqrt()
            assert off.max() < 5 * BOUND[8], (off.max(), first)


@pytest.mark.parametrize("width", [48, 64])
def test_square_parts_of_a_tensor(width):
    """Rows that lie apart are turned before they are put into codes, and back after."""
    torch.manual_seed(0)
    base = torch.randn(8, 64, 2 * width, requires_grad=True)
    sizes = torch.linspace(1, 2, 64).view(64, 1) * torch.linspace(1, 3, 2 * width)
    made = []
    for scope in (contextlib.nullcontext(), compact.saved_tensors("slot * = quantize:bits=8\n")):
        with scope:
            y = (base * sizes).chunk(2, -1)[0].var(1)
            made.append(torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), base)[0])
    assert (made[1] - made[0]).norm() < 0.02 * made[0].norm()


def test_factors_of_rows_are_held_whole():
    """A norm takes the size of its rows away: a factor of each that was rounded beside others' would come back in the gradient."""
    torch.manual_seed(0)
    x = torch.randn(2, 1024, 128, requires_grad=True)
    weight, size = torch.ones(16, 1, requires_grad=True), torch.cat([10 ** -(3 * torch.rand(2048, 1)), torch.zeros(2048, 15)], 1)
    to = torch.randn(x.shape)
    made = []
    for scope in (contextlib.nullcontext(), compact.saved_tensors("slot * = quantize:bits=8\nslot role:cheap = recompute\n")):
        with scope:
            loss = (F.layer_norm(F.gelu(x) * (size @ weight).view(2, 1024, 1), (128,), eps=1e-12) * to).sum()
        made.append(torch.autograd.grad(loss, x)[0])
    assert ((made[1] - made[0]).norm(dim=-1) < 0.1 * made[0].norm(dim=-1)).all()
