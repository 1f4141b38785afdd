# SPDX-License-Identifier: Apache-2.0
"""Codecs that round beside `slot role:cheap = recompute`: what is held is rounded, what follows from it smoothly is rebuilt."""
from _scopes import nothing_is_left  # noqa: F401 - a fixture for all tests
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compact

CODES = "slot * = quantize:bits=4"
REBUILT = CODES + "\nslot role:cheap = recompute"
ROWS, WIDTH = 256, 64
CODE_BYTES = ROWS * WIDTH // 2 + ROWS * WIDTH // 256 * 4  # 4 bits, and two bf16 a group of 256
ROW_BYTES = ROWS * WIDTH // 2 + ROWS * 4  # the same a row, where others are rebuilt from it
ALL, BITS = ROWS * WIDTH * 4, ROWS * WIDTH // 8
GAMMA = nn.Parameter(torch.ones(WIDTH))
OF_COLUMNS, OF_ROWS, OF_HEADS = torch.ones(WIDTH), torch.ones(ROWS, 1), torch.ones(ROWS, 2, 1)  # exact


class Held(nn.Module):
    """A function of a product's result."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(WIDTH, WIDTH), function
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.function(self, self.linear(x))


def held_by(function, policy, seed=0):
    model = Held(function)
    torch.manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with compact.saved_tensors(policy, model=model) as saved:
        loss = model(x)
    rows = {t.name.split(".", 1)[-1] if t.name.startswith("linear") else t.name: t for t in saved.report()}
    stored = saved.live_bytes
    loss.backward()
    return rows, stored, [x.grad] + [p.grad for p in model.parameters() if p.grad is not None]


def gradients_of(function):
    model = Held(function)
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    model(x).backward()
    return [x.grad] + [p.grad for p in model.parameters() if p.grad is not None]


def with_negatives(mask):
    mask[3:5] = -1.0
    return mask


def tokens(m, y):
    return (m.last(F.gelu(m.norm(y))) * torch.linspace(-1, 1, WIDTH)).sum()


# There are codes of one tensor, where each operation had its own before. The input of the first product is a leaf, and takes none.
@pytest.mark.parametrize(("function", "before", "now"), [
    (tokens, 3 * CODE_BYTES, ROW_BYTES),  # inputs of the norm, of gelu and of the last product
    (lambda m, y: m.last(F.relu(y)).sum(), CODE_BYTES, ROW_BYTES),  # codes of a result whose own signs can be read
    (lambda m, y: m.last(F.relu(m.norm(y))).sum(), 2 * CODE_BYTES, ROW_BYTES + BITS),
    (lambda m, y: m.last(torch.exp(m.norm(y))).sum(), CODE_BYTES + ALL, ALL),  # exp reads its own result, which is made again of what the norm reads
])
def test_bytes_of_what_is_held(function, before, now):
    small = 2 * ROWS * 4  # means and deviations of norms
    for policy, wanted in ((CODES, before), (REBUILT, now)):
        stored = held_by(function, policy)[1]
        assert wanted <= stored <= wanted + small, (policy, stored, wanted)


def test_rebuilt_gradients_are_unbiased_and_no_further_off():
    plain = gradients_of(tokens)
    off = {}
    for policy in (CODES, REBUILT):
        passes = []
        model = Held(tokens)
        torch.manual_seed(0)
        x = torch.randn(ROWS, WIDTH, requires_grad=True)
        saved = compact.saved_tensors(policy, model=model)
        for _ in range(48):
            model.zero_grad(set_to_none=True)
            x.grad = None
            with saved:
                loss = model(x)
            loss.backward()
            passes.append([x.grad] + [p.grad for p in model.parameters()])
        for i, wanted in enumerate(plain):
            errors = torch.stack([p[i] for p in passes]) - wanted
            off[policy, i] = errors.square().sum((1, *range(2, errors.dim()))).mean().sqrt() if errors.dim() > 1 else 0
            # The mean's error shrinks as that of independent draws: within a factor that chance passes less than once in 10^4.
            assert errors.mean(0).norm() <= 1.5 * errors.flatten(1).norm(dim=1).mean() / 48**0.5 + 0.02 * wanted.norm(), i
    for i in range(len(plain)):
        assert off[REBUILT, i] <= 1.6 * off[CODES, i] + 1e-6, i


# A factor of 0 lets one reader's gradient through alone: what is read exactly is exact, whatever is rounded for the other reader.
@pytest.mark.parametrize("function", [
    lambda m, y: torch.tanh(y).sum() + 0 * m.last(F.gelu(y)).sum(),
    lambda m, y: 0 * m.last(F.gelu(y)).sum() + torch.tanh(y).sum(),
    lambda m, y: 0 * F.gelu(y).sum() + (lambda r: r.sum() + 0 * m.last(r).sum())(F.relu(y * 2)),
    lambda m, y: 0 * F.gelu(y).sum() + (y.abs() + 1).log().sum(),
    lambda m, y: 0 * F.gelu(y).sum() + y.abs().sum() + y.clamp(-0.1, 0.1).sum() + y.amax(1).sum(),
    lambda m, y: 0 * F.gelu(y).sum() + F.softmax(y, 1)[:, 0].sum() + torch.sigmoid(y).sum(),
    lambda m, y: 0 * m.last(y).sum() + F.max_pool1d(F.silu(y), 2).sum() * 0 + F.leaky_relu(y).sum(),
])
def test_what_is_read_exactly_is_exact(function):
    for ours, wanted in zip(held_by(function, REBUILT)[2][:1], gradients_of(function)[:1]):
        # x's gradient goes through the exact readers and the weight, which are not rounded.
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize(("function", "smooth"), [
    (lambda y: torch.reciprocal(y.abs() + 1e-3), False), (lambda y: y - y.roll(1, 0), False), (lambda y: torch.add(y, y.roll(1, 0), alpha=-1), False),
    (lambda y: y + y.roll(1, 0), True), (lambda y: y - 1, True), (lambda y: F.layer_norm(y, (WIDTH,)), True), (lambda y: F.layer_norm(y.t(), (ROWS,)).t(), False),
    (lambda y: F.layer_norm(y.view(ROWS, 2, -1), (WIDTH // 2,)).flatten(1), False),
    # Differences, however they are written: of two rounded tensors, or of one and exact values that differ within a row.
    (lambda y: y + -y.roll(1, 0), False), (lambda y: y + y.roll(1, 0) * -1.0, False), (lambda y: torch.stack([y, -y.roll(1, 0)]).sum(0), False),
    (lambda y: torch.addcmul(y, y.roll(1, 0), -torch.ones(ROWS, WIDTH)), False), (lambda y: -y - y.roll(1, 0), False), (lambda y: -y + -y.roll(1, 0), True),
    (lambda y: y - OF_COLUMNS, False), (lambda y: y + OF_COLUMNS, False), (lambda y: OF_COLUMNS - y, False), (lambda y: y + OF_ROWS, True),
    (lambda y: y + y.roll(1, 0) * torch.tensor(-1.0), False), (lambda y: y + y.roll(1, 0) * torch.full((1, WIDTH), -1.0), False),
    (lambda y: (torch.stack([y, y.roll(1, 0)]) * torch.tensor([1.0, -1.0]).view(2, 1, 1)).sum(0), False), (lambda y: y + y.roll(1, 0) * GAMMA, True),
    (lambda y: y + y.roll(1, 0) * torch.sigmoid(y[:, :1]), True), (lambda y: y + -y.roll(1, 0) * torch.sigmoid(y[:, :1]), False),
    # Masks of stochastic depth, which keep signs; and what is no mask of it.
    (lambda y: y + y.roll(1, 0) * torch.empty(ROWS, 1).bernoulli_(0.8).div_(0.8), True), (lambda y: y + y.roll(1, 0) * (torch.bernoulli(torch.full((ROWS, 1), 0.8)) / 0.8), True),
    (lambda y: y + y.roll(1, 0).div(0.8) * torch.floor(torch.rand(ROWS, 1) + 0.8), True), (lambda y: y - y.roll(1, 0) * torch.empty(ROWS, 1).bernoulli_(0.8), False),
    (lambda y: y + y.roll(1, 0) * torch.empty(ROWS, 1).bernoulli_(0.8).div_(-0.8), False), (lambda y: y + y.roll(1, 0) * (torch.rand(ROWS, 1) - 0.5), False),
    (lambda y: y + y.roll(1, 0) * torch.empty(ROWS, 1).bernoulli_(0.8).mul_(torch.randn(ROWS, 1)), False), (lambda y: y + y.roll(1, 0) / -0.8, False),
    (lambda y: y + y.roll(1, 0) * with_negatives(torch.empty(ROWS, 1).bernoulli_(0.8)), False), (lambda y: y / OF_ROWS, False),
    (lambda y: torch.lerp(y.roll(1, 0), y, 2.0), False), (lambda y: torch.lerp(y, y.roll(1, 0), 0.5), True), (lambda y: torch.lerp(y, -y.roll(1, 0), 0.5), False),
    (lambda y: y.lerp(y.roll(1, 0), torch.full((ROWS, WIDTH), 2.0)), False), (lambda y: y * torch.linspace(-1, 1, WIDTH) + torch.cat([-y[:, 32:], y[:, :32]], 1) * 0.5, False),
    (lambda y: (torch.cat([y, -y]) + torch.cat([-y.roll(1, 0), y.roll(1, 0)]))[:ROWS], False), (lambda y: torch.cat([y, y]).add(torch.cat([-y.roll(1, 0), y]))[:ROWS], False),
    (lambda y: F.avg_pool2d(torch.cat([y, -y.roll(1, 0)], 1).view(1, ROWS, 2, WIDTH), (2, 1)).view(ROWS, WIDTH), False),
    # Groups of short maps, which share scales with others, and of long ones.
    (lambda y: F.group_norm(y.view(8, 128, 4, 4), 4).view_as(y), False), (lambda y: F.group_norm(y.view(8, 32, 8, 8), 4).view_as(y), True),
    # Factors of whole rows, and of heads.
    (lambda y: y * OF_ROWS, True), (lambda y: y * OF_ROWS.expand_as(y), True), (lambda y: y * OF_COLUMNS.expand_as(y), False),
    (lambda y: (y.view(ROWS, 2, -1) * OF_HEADS).flatten(1), False),
])
def test_what_is_smooth_is_rebuilt_from_rounded_values(function, smooth):
    rows, _, _ = held_by(lambda m, y: (m.last(function(y)) + F.gelu(y)).sum(), REBUILT)
    assert (rows["last.addmm.input1"].treatment == "recompute") == smooth, rows


class Deep(nn.Module):
    """A residual block whose branch has a factor of each channel, and may be left out."""

    def __init__(self, keeps):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gamma, self.keeps = nn.Parameter(torch.full((WIDTH,), 0.1)), keeps

    def forward(self, x):
        y = self.down(F.gelu(self.up(self.norm(x)))) * self.gamma
        return x + (y if self.keeps == 1 else y * y.new_empty(len(y), 1, 1).bernoulli_(self.keeps).div_(self.keeps))


def test_stochastic_depth_takes_its_masks():
    held = []
    for keeps in (1, 0.9):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Deep(keeps) for _ in range(6)])
        with compact.saved_tensors(REBUILT, model=model) as saved:
            loss = model(torch.randn(16, 64, WIDTH)).square().mean()
        held.append(saved.live_bytes)
        loss.backward()
    assert 0 < held[1] - held[0] <= 6 * 16 * 4, held


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_infinities_stay(value):
    def function(m, y):
        y = torch.cat([y[:1] * value, y[1:]])
        return m.last(F.gelu(m.norm(y)))[1:].sum() + m.last(y)[0].sum()

    ours, wanted = held_by(function, REBUILT)[2], gradients_of(function)
    for a, b in zip(ours, wanted):
        assert torch.equal(a.isfinite(), b.isfinite())


def test_errors_do_not_add_up_without_end():
    def function(m, y):
        for _ in range(12):
            y = y + F.gelu(m.last(m.norm(y)))
        return y.sum()

    rows, _, _ = held_by(function, REBUILT)
    codes = [t for t in rows.values() if t.treatment.startswith("quantize")]
    # Sums of the residual path are rounded themselves, at the latest every third.
    assert len(codes) >= 12 + 12 // 3, [(n, t.treatment) for n, t in rows.items()]


def test_pooled_means_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3))
    with pytest.raises(ValueError, match="encoded as it lies in memory"), compact.saved_tensors("slot * = pool:size=2\nslot role:cheap = recompute", model=model):
        model(torch.randn(2, 3, 16, 16, requires_grad=True))


def spread(y):
    """Complex numbers of the values."""
    return torch.view_as_complex((y if y.stride(1) == 1 else y.contiguous()).unflatten(1, (-1, 2)))


def turned(y):
    """Rotated as rotary positions are, by complex numbers."""
    angles = torch.linspace(0, 3, ROWS)[:, None] * torch.linspace(1, 0.1, WIDTH // 2)
    return torch.view_as_real(spread(y) * torch.polar(torch.ones_like(angles), angles)).flatten(1)


def written(y, change):
    """Its first half is changed in place."""
    y = y * 1.5
    change(y[:, :WIDTH // 2])
    return y


# The backward passes of these read their tensors exactly, or none.
EXACT = [
    torch.tanh, torch.sigmoid, torch.exp, torch.abs, F.relu, F.leaky_relu, turned,
    lambda y: y / (1 + y.abs()), lambda y: F.softmax(y, 1), lambda y: y.clamp(-0.5, 0.5), lambda y: y * 0.5 + 1, lambda y: torch.cat([y[:, 1:], y[:, :1]], 1),
    lambda y: F.max_pool1d(y, 3, 1, 1), lambda y: spread(y).abs().repeat(1, 2), lambda y: torch.view_as_real(spread(y).exp()).flatten(1),
    lambda y: written(y, torch.relu_), lambda y: written(y, torch.tanh_), lambda y: written(y, torch.sigmoid_), lambda y: written(y, lambda part: part.mul_(2)),
    lambda y: F.relu(y.clone(), inplace=True), lambda y: (y + 0.1).transpose(0, 1).contiguous().t(), lambda y: y.double().tanh().float(),
]
# The backward passes of these read rounded tensors.
NEAR = [
    lambda m, y: F.gelu(y), lambda m, y: m.last(y), lambda m, y: m.norm(y), lambda m, y: F.silu(y) * y, lambda m, y: y.square(),
    lambda m, y: m.last(F.relu(y)), lambda m, y: turned(F.gelu(y)), lambda m, y: m.last(turned(y)), lambda m, y: m.last(y + 1), lambda m, y: m.last(y[:, :]),
    lambda m, y: torch.view_as_real(spread(y) * spread(F.silu(y))), lambda m, y: m.last(y.bfloat16().float()), lambda m, y: m.last(F.gelu(m.norm(y)) + y),
    lambda m, y: y.contiguous().view(torch.bfloat16).nan_to_num(0, 0, 0) * 2, lambda m, y: F.dropout(F.gelu(y), 0.1),
]


def mixed(seed, inner):
    """Exact readers of random tensors in a chain, whose gradient is all that is left; rounded readers of the same tensors, times 0."""
    def function(m, y):
        draw = torch.Generator().manual_seed(seed)
        one_of = lambda choices: choices[int(torch.randint(len(choices), (), generator=draw))]  # noqa: E731
        tensors, beside = [y], 0
        for _ in range(8):
            if one_of([0, 1]):
                beside = beside + 0 * one_of(NEAR)(m, one_of(tensors)).float().sum()
            else:
                tensors.append(one_of(EXACT)(one_of(tensors[-3:])))
            if not one_of(range(6)):
                inner.append(torch.autograd.grad(tensors[-1].sum(), y, retain_graph=True)[0])
        return sum(t.sum() for t in tensors[-2:]) + beside

    return function


@pytest.mark.parametrize("seed", range(300))
def test_exact_readers_get_exact_values_whatever_is_beside_them(seed):
    ours, plain = [], []
    got = held_by(mixed(seed, ours), REBUILT)[2][0]
    wanted = gradients_of(mixed(seed, plain))[0]
    assert torch.equal(got, wanted)
    assert len(ours) == len(plain) and all(torch.equal(a, b) for a, b in zip(ours, plain))


def gradients(model, x, policy, draw=0):
    """The gradients of all parameters and of x, and the bytes held."""
    torch.manual_seed(draw)
    leaf, held = x.clone().requires_grad_(), 0
    if policy:
        with compact.saved_tensors(policy, model=model) as saved:
            loss = model(leaf)
        held = saved.live_bytes
    else:
        loss = model(leaf)
    loss.backward()
    every = [leaf.grad] + [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat([g.flatten() for g in every]), held


def errors(model, x, bits):
    """Relative errors of gradients, means of three draws: tensors in codes, and rebuilt from codes."""
    wanted = gradients(model, x, None)[0]
    for policy in (f"slot * = quantize:bits={bits}", f"slot * = quantize:bits={bits}\nslot role:cheap = recompute"):
        yield sum(float((gradients(model, x, policy, draw)[0] - wanted).norm() / wanted.norm()) for draw in range(3)) / 3


class Positions(nn.Module):
    """Sines of features, which products read rounded, in 8 frequencies."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("freqs", 2.0 ** -torch.arange(8.0))
        self.scale, self.features, self.first, self.beside = scale, nn.Linear(4, 4), nn.Linear(4 + 32, 64), nn.Linear(4, 64)

    def forward(self, x):
        x = self.features(x) * self.scale
        beside = self.beside(x)
        y = F.gelu(self.first(torch.cat([x, torch.sin(x[..., None] * self.freqs).flatten(-2)], -1)) + beside)
        return (y @ torch.linspace(-1, 1, 64)).mean()


@pytest.mark.parametrize("scale", [1, 1 / 64])
def test_what_is_read_rounded_and_exactly_is_held_once(scale):
    model, x = Positions(scale), torch.randn(1024, 4, generator=torch.Generator().manual_seed(1))
    codes, rebuilt = errors(model, x, 4)
    assert rebuilt <= 1.5 * codes + 0.002, (codes, rebuilt)
    held = gradients(model, x, REBUILT)[1]
    # The features as they are, from which the sines' arguments follow; the sum is in codes.
    assert held == 1024 * (4 * 4 + 64 // 2 + 4) + 8 * 4, held


class Tokens(nn.Module):
    """A block over tokens of other sizes each, of which the first is read by its own."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.head = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Linear(width, 4)

    def forward(self, x):
        x = x * torch.exp(torch.tensor([-1.5, 1.5] * 32 + [-1.5]))[:, None]
        for _ in range(3):
            x = x + self.down(F.gelu(self.up(self.norm(x))))
        x = self.last(x)
        return self.head(x[:, 0]).square().mean() + 0.1 * F.gelu(self.head(x[:, ::2])).square().mean()


@pytest.mark.parametrize(("width", "bits"), [(192, 4), (192, 8), (96, 4), (64, 8)])
def test_tokens_share_no_scale(width, bits):
    codes, rebuilt = errors(Tokens(width), torch.randn(16, 65, width, generator=torch.Generator().manual_seed(2)), bits)
    assert rebuilt <= 1.3 * codes, (codes, rebuilt)


def test_a_class_token_has_codes_of_its_own():
    model, x = Tokens(192), torch.randn(16, 65, 192, generator=torch.Generator().manual_seed(2))
    with compact.saved_tensors(REBUILT, model=model) as saved:
        model(x)
    token = [t for t in saved.report() if t.name.startswith("head") and t.shape == (16, 192)]
    assert [t.stored for t in token] == [16 * 192 // 2 + 16 * 192 // 256 * 4]


class Channels(nn.Module):
    """Batch norms of maps, or of vectors, whose channels have other sizes each."""

    def __init__(self, norm, layout):
        super().__init__()
        torch.manual_seed(0)
        one = (lambda: nn.Conv2d(32, 32, 3, padding=1)) if norm is nn.BatchNorm2d else (lambda: nn.Linear(32, 32))
        self.layers, self.norms = nn.ModuleList(one() for _ in range(3)), nn.ModuleList(norm(32) for _ in range(3))
        for layer in self.layers:
            layer.weight.data *= torch.exp(torch.linspace(-1.5, 1.5, 32)[torch.randperm(32)]).view(-1, *[1] * (layer.weight.dim() - 1))
        self.to(memory_format=layout)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x)))
        return F.cross_entropy(x.mean((2, 3)) if x.dim() == 4 else x, torch.arange(len(x)) % 10)


@pytest.mark.parametrize(("norm", "layout", "sizes"), [
    (nn.BatchNorm2d, torch.contiguous_format, (16, 32, 4, 4)), (nn.BatchNorm2d, torch.contiguous_format, (16, 32, 16, 16)),
    (nn.BatchNorm2d, torch.channels_last, (16, 32, 16, 16)), (nn.BatchNorm1d, torch.contiguous_format, (512, 32)),
])
def test_channels_share_no_scale(norm, layout, sizes):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(2))
    codes, rebuilt = errors(Channels(norm, layout), x.contiguous(memory_format=layout), 8)
    assert rebuilt <= 2 * codes, (codes, rebuilt)


class Random(nn.Module):
    """Readers of rounded values and of exact ones in random order, over tokens of other sizes each."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.seed, self.layers, self.norm, self.maps = seed, nn.ModuleList(nn.Linear(48, 48) for _ in range(6)), nn.LayerNorm(48), nn.BatchNorm2d(4)
        self.register_buffer("freqs", 2.0 ** -torch.arange(8.0))

    def forward(self, x):
        draw = torch.Generator().manual_seed(self.seed)
        some = lambda count: int(torch.randint(count, (), generator=draw))  # noqa: E731
        linear = lambda y: self.layers[some(6)](y)  # noqa: E731
        steps = [
            lambda y, z: linear(y), lambda y, z: F.gelu(y), lambda y, z: self.norm(y), lambda y, z: torch.sin(y), lambda y, z: torch.exp(0.1 * self.norm(y)),
            lambda y, z: 4 * F.softmax(y, -1), lambda y, z: self.maps(y.reshape(-1, 4, 16, 12)).reshape(y.shape), lambda y, z: torch.cat([y[:, 24:], z[:, :24]], 1),
            lambda y, z: y + z, lambda y, z: linear(torch.sin(y[:, :6, None] * self.freqs).flatten(1)), lambda y, z: y - z, lambda y, z: F.silu(y) * z,
            lambda y, z: torch.cat([y, linear(y)], 1)[:, 20:68], lambda y, z: torch.exp(-0.1 * y.square()),
        ]
        made = [x, linear(x)]
        for _ in range(9):
            y, z = made[-1 - some(min(3, len(made)))], made[-1 - some(len(made))]
            made.append(steps[some(len(steps))](y, z))
        return (F.gelu(linear(made[-1])) + made[-2]).square().mean()


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_are_no_further_off(seed):
    torch.manual_seed(seed)
    x = torch.randn(512, 48) * torch.exp(torch.randn(512, 1))
    for bits in (4, 8):
        codes, rebuilt = errors(Random(seed), x, bits)
        assert rebuilt <= 2 * codes + 0.01, (bits, codes, rebuilt)
