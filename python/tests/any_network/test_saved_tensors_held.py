# SPDX-License-Identifier: Apache-2.0
"""The bytes that saved_tensors() holds, exactly, under which names; and nothing stays behind."""
import contextlib
import gc
import warnings
import weakref

from _device import cpu_only, DEVICE
from _scopes import distance, EIGHT, FOUR, net, nothing_is_left, same, step  # noqa: F401 - a fixture for all tests
from conftest import inputs, make
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import compact


# ---- What is held.


def test_names_say_module_operation_and_place():
    model, ids = net()
    with compact.saved_tensors("off", model=model) as saved:
        model(ids)
    names = {t.name for t in saved.report()}
    assert {
        "up.addmm.input1",
        "norm.native_layer_norm.input",
        "norm~1.mul.input1" if DEVICE == "cpu" else "norm~1.native_dropout.result",  # what dropout multiplies with
        "frozen.addmm.input2",
        "basis.mm.input1",
        "conv.convolution.input",
    } <= names
    table = str(saved.report())
    assert "up.addmm.input1" in table and f"{saved.stored:,}" in table


def test_names_under_autocast_and_wrappers():
    model, ids = net()
    compiled = torch.compile(model, backend="eager")  # never called: its names are of interest
    for autocast in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            with compact.saved_tensors("off", model=compiled) as saved:
                model(ids)
        assert "up.addmm.input1" in {t.name for t in saved.report()}, autocast


def test_names_without_a_model():
    with compact.saved_tensors("off", least_elements=1) as saved:
        torch.ones(4, requires_grad=True).exp().sin()
    assert [t.name for t in saved.report()] == ["~1.exp.result", "~2.sin.input"]


def test_parameters_take_nothing():
    model, ids = net()
    with compact.saved_tensors("off", model=model, least_elements=1) as saved:
        model(ids)
    parameters = [t for t in saved.report() if t.parameter]
    assert len(parameters) >= 6
    assert all(t.bytes == t.stored == 0 and t.treatment == "parameter" for t in parameters)


def test_report_is_what_the_meter_counts():
    w = nn.Parameter(torch.randn(256, 256))
    x = torch.randn(128, 256)
    for policy in ("off", FOUR, "slot * = quantize:bits=2"):
        with compact.Meter() as meter:
            with compact.saved_tensors(policy, least_elements=1) as saved:
                y = (torch.relu(x * 1.5 @ w) @ w).sum()
            assert meter.now == saved.stored + 4 == saved.live_bytes + 4  # and the sum
            y.backward()
            w.grad = None
            assert saved.live_bytes == 0 and meter.now == 4
            del y


def test_one_region_of_memory_is_held_once():
    w = nn.Parameter(torch.randn(64, 64))
    with compact.Meter() as meter:
        with compact.saved_tensors(FOUR, least_elements=1) as saved:
            x = torch.randn(32, 64) + 0
            outs = [x @ w, x.view(4, 8, 64) @ w, (x.t().t() * w[:32]), x.T.contiguous().T @ w]
            del x
        sizes = 32 * 64 // 2 + 8 * 4
        rows = [t for t in saved.report() if not t.parameter]
        assert sum(t.stored > 0 for t in rows) == 2  # x, and its copy in another order
        assert saved.stored == 2 * sizes
        outs = [o.sum() for o in outs]
        assert meter.now == 2 * sizes + 4 * len(outs)


def test_views_of_kept_memory_stay_apart():
    a, b = nn.Parameter(torch.randn(40, 40)), nn.Parameter(torch.randn(40, 40))
    x = torch.randn(40, 40)

    def run(scope):
        a.grad = b.grad = None
        with scope:
            y = ((x @ a) * (x.t() @ b)).sum() + (x[3:33] @ a).sum()
        y.backward()
        return a.grad, b.grad

    wanted = run(contextlib.nullcontext())
    got = run(compact.saved_tensors("off", least_elements=1))
    assert all(torch.equal(g, w) for g, w in zip(got, wanted))


def test_casts_of_parameters_are_not_held():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 256, bias=False),
        nn.Linear(256, 256, bias=False).requires_grad_(False),
        nn.Linear(256, 8, bias=False),
    )
    x = torch.randn(16, 256, requires_grad=True)

    def run(scope):
        model.zero_grad()
        x.grad = None
        with compact.Meter() as meter:
            with torch.autocast(DEVICE, torch.bfloat16), scope:
                y = model(x).sum()
            held = meter.now
        y.backward()
        return held, [p.grad for p in (x, *model.parameters()) if p.grad is not None]

    plain, wanted = run(contextlib.nullcontext())
    saved = compact.saved_tensors("off", model=model, least_elements=1)
    held, got = run(saved)
    assert all(torch.equal(g, w) for g, w in zip(got, wanted)) and len(got) == 3
    # All weights in bf16 are gone, and the copy of x, which is a leaf. A frozen product saves no
    # input, so that the one of the last is what is left; and the sum.
    total = 2 if DEVICE == "cpu" else 4  # bytes of the sum, in float32 on a GPU
    assert held == saved.stored + total == 2 * 16 * 256 + total
    assert plain == held + 2 * (2 * 256 * 256 + 256 * 8 + 16 * 256)


def test_a_parameter_that_changed_after_its_cast_raises():
    w, x = nn.Parameter(torch.randn(64, 64)), torch.randn(64, 64, requires_grad=True)
    with torch.autocast(DEVICE, torch.bfloat16), compact.saved_tensors("off", least_elements=1):
        y = (x @ w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_a_buffer_may_change_after_its_cast():
    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("book", torch.randn(64, 64))

        def forward(self, x):
            y = x @ self.book
            self.book.mul_(0.5)
            return y.sum()

    gradient = []
    for scope in (
        lambda m: contextlib.nullcontext(),
        lambda m: compact.saved_tensors(EIGHT, model=m, least_elements=1),
    ):
        torch.manual_seed(0)
        model, x = Codebook(), torch.randn(64, 64, requires_grad=True)
        with torch.autocast(DEVICE, torch.bfloat16), scope(model):
            y = model(x)
        y.backward()
        gradient.append(x.grad)
    assert torch.equal(*gradient)


@cpu_only  # elsewhere other kernels of attention hold others
@pytest.mark.parametrize(
    "kind,smaller,exact",
    [
        ("llama", 5.2, {"rsqrt", "_scaled_dot_product_flash_attention_for_cpu", "_log_softmax"}),
        ("bert", 7.1, {"native_layer_norm", "_scaled_dot_product_flash_attention_for_cpu", "tanh"}),
        ("vit", 7.6, set()),
    ],
)
def test_models_of_transformers_hold_little_in_four_bits(kind, smaller, exact):
    model = make(kind).train()
    given = inputs(kind) if kind == "vit" else inputs(kind, batch=8, length=64)
    with compact.saved_tensors("gact-l1", model=model, least_elements=256) as saved:
        model(**given)
    assert saved.bytes / saved.stored > smaller and saved.report().exact_for.keys() <= exact


def test_pool_holds_means_of_what_convolutions_read():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(1152, 2))
    x = torch.randn(4, 3, 16, 16)

    def run(scope):
        model.zero_grad()
        with scope:
            loss = model(x).square().sum()
        loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters()}

    wanted = run(contextlib.nullcontext())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every line of the preset is for something here
        saved = compact.saved_tensors("pool", model=model)
        got = run(saved)
    assert [n for n in wanted if not torch.equal(got[n], wanted[n])] == ["3.weight"]
    norm = "native_batch_norm" if DEVICE == "cpu" else "cudnn_batch_norm"
    held = {t.name: (t.role, t.treatment, t.bytes / max(1, t.stored)) for t in saved.report() if not t.parameter}
    assert held["0.convolution.input"] == ("image", "keep", 1) and held[f"1.{norm}.input"] == ("conv", "keep", 1)
    assert held["1~1.relu.result"] == ("signs", "mask:of=sign", 32) and held["3.convolution.input"] == ("map", "pool:size=2", 4)


# ---- Nothing is left behind.


@pytest.mark.parametrize("policy", ["off", EIGHT])
@pytest.mark.parametrize("backward", [True, False])
def test_a_thousand_steps_leave_no_byte(policy, backward):
    w = nn.Parameter(torch.randn(16, 40))
    x = torch.randn(2, 16)
    saved = compact.saved_tensors(policy, least_elements=40)
    refs = []
    with compact.Meter() as meter:
        for i in range(1000):
            with saved:
                # exp saves its own result; 40 elements reach C++, 2 do not.
                y = (x @ w).exp()
                z = y.sum(1).exp().sum()
            if backward:
                z.backward()
            if i == 0:
                refs = [weakref.ref(t) for t in (y, z)]
            w.grad = None
            del y, z
            assert meter.now == 0 and saved.live_bytes == 0
    assert all(r() is None for r in refs)
    ref = weakref.ref(saved)
    del saved
    assert ref() is None  # by its count alone


def test_it_holds_no_model_after_all_is_over():
    model, ids = net()
    saved = compact.saved_tensors(EIGHT, model=model)
    step(model, ids, saved)
    parameter, held = weakref.ref(model.up.weight), weakref.ref(model)
    del saved, model
    gc.collect()
    assert parameter() is None and held() is None


def test_graphs_outlive_their_scope():
    x = torch.randn(64, 64, requires_grad=True)
    saved = compact.saved_tensors(EIGHT, least_elements=1)
    with saved:
        y = (x * 1).square().sum()
    del saved
    gc.collect()
    y.backward()
    assert (x.grad - 2 * x).abs().max() < 0.1


def test_freed_memory_is_not_mistaken():
    w = nn.Parameter(torch.randn(64, 64))
    xs = [torch.randn(64, 64) for _ in range(20)]
    with compact.saved_tensors(EIGHT, least_elements=1) as saved:
        outs = [((x + 0) @ w).sum() for x in xs]
    assert not any(t.shared for t in saved.report() if not t.parameter)
    for x, out in zip(xs, outs):
        w.grad = None
        out.backward()
        assert torch.allclose(w.grad, x.sum(0)[:, None].expand(64, 64), atol=1)

# ---- Checkpoints: what layers begin with is all that is held, and that in few bits.

LAYERS, WIDTH, ROWS = 6, 64, 32


def held_of(elements, bits, group=256):
    """Bytes of f32 values, or of codes with an offset and a step of bf16 for each group."""
    return 4 * elements if bits is None else elements * bits // 8 + elements // group * 4


@pytest.mark.parametrize("how", ["plain", "reentrant", "not reentrant"])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_checkpoints_hold_inputs_in_few_bits(how, bits):
    torch.manual_seed(0)
    first = nn.Linear(WIDTH, WIDTH)
    layers = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS))
    )
    x = torch.randn(ROWS, WIDTH)

    def run(scope, how):
        layers.zero_grad()
        with compact.Meter() as meter:
            with scope:
                y = first(x)
                for layer in layers:
                    reentrant = how == "reentrant"
                    y = (
                        layer(y)
                        if how == "plain"
                        else checkpoint(layer, y, use_reentrant=reentrant, preserve_rng_state=False)
                    )
                y = y.sum()
            now = meter.now
        y.backward()
        return now, {n: p.grad.clone() for n, p in layers.named_parameters()}

    _, wanted = run(contextlib.nullcontext(), "plain")
    policy = "off" if bits is None else f"slot * = quantize:bits={bits}"
    saved = compact.saved_tensors(policy, model=layers)
    held, got = run(saved, how)
    # Each layer holds its input, a plain one also the result of ReLU; the input x of the first is there already where
    # it is kept. The 4 bytes are the sum's.
    tensors = 2 * LAYERS if how == "plain" else LAYERS
    assert held == (tensors + (bits is not None)) * held_of(ROWS * WIDTH, bits) + 4
    assert saved.stored == (tensors + 1) * held_of(ROWS * WIDTH, bits)
    assert saved.live_bytes == 0
    assert same(got, wanted) if bits is None else 0 < distance(got, wanted) < (0.02 if bits == 8 else 0.3)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_checkpointing_of_transformers(reentrant, autocast):
    model, ids = make("llama").model, inputs("llama", batch=4, length=64)["input_ids"]
    hidden = model.config.hidden_size * ids.numel()

    def run(scope):
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast), scope:
            last = model(ids, use_cache=False).last_hidden_state
            loss = (last * last.roll(1, 0)).mean()
        live = scope.live_bytes
        loss.backward()
        return live, {n: p.grad for n, p in model.named_parameters()}

    _, wanted = run(compact.saved_tensors("off", model=model))
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    live = {}
    for bits in None, 8, 4:
        saved = compact.saved_tensors("off" if bits is None else f"slot * = quantize:bits={bits}", model=model)
        live[bits], got = run(saved)
        assert distance(got, wanted) < (1e-6 if bits is None else 0.05 if bits == 8 else 0.5)
        layers = [t for t in saved.report() if t.stored and t.bytes == 4 * hidden]
        # The results of the embedding and both layers, and the tensors saved by the last norm and the product.
        # A norm divides by a scale of each row, which has a group of its own.
        of_norms = held_of(hidden, bits, model.config.hidden_size)
        assert len(layers) >= 3 and {t.stored for t in layers} == {held_of(hidden, bits), of_norms}
        assert saved.live_bytes == 0
    assert live[8] < 0.3 * live[None] and live[4] < 0.2 * live[None]
