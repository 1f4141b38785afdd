# SPDX-License-Identifier: Apache-2.0
"""Cases that could break tensors that are rebuilt, beside plain PyTorch, bit for bit; or the sentence that refuses them."""

import contextlib

import _rebuilt_writes  # noqa: F401 - more of the cases
import pytest
import torch
from _rebuilt_cases import CASES, N, exact, net, rows
from torch import nn
from torch.nn import functional as F


# Some cases save next to nothing, of which a warning tells.
pytestmark = pytest.mark.filterwarnings("ignore:compact.saved_tensors")


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name):
    torch.manual_seed(1)
    wanted = CASES[name](lambda m=None: contextlib.nullcontext())
    torch.manual_seed(1)
    got = CASES[name](exact)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def gated(x, w):
    return torch.sigmoid(x @ w) * torch.tanh(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torchscript_saves_is_rebuilt():
    m, w, scripted = net(), nn.Parameter(rows()[:N].clone()), torch.jit.script(gated)

    def run(scope):
        for t in (*m.parameters(), w):
            t.grad = None
        with scope:
            loss = scripted(F.gelu(m[0](rows())) * 2, w).square().sum()
        loss.backward()
        return [m[0].weight.grad, w.grad]

    for _ in range(3):  # until it has profiled itself, and has a graph of its own
        wanted = run(contextlib.nullcontext())
    scope = exact()
    assert all(map(torch.equal, run(scope), wanted))
    outside = [t for t in scope.report() if t.name.endswith(".tensor")]  # what it saves is of no operation
    assert outside and outside[0].treatment == "recompute"


def test_what_is_saved_and_written_raises_as_ever():
    m = net()
    with exact(m):
        y = m[0](rows()).exp()
        loss = (y * 2).sum()
        y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("how", ["in place", "after it was read by its data", "freed"])
def test_names_the_parameter_that_was_changed(how):
    m = nn.Sequential(nn.Linear(N, N))
    m[0].register_parameter("shift", nn.Parameter(torch.zeros(N)))
    with exact(m):
        h = m(rows())
        shift = m[0].shift.data.clone() if "data" in how else m[0].shift
        loss = h.square().sum() + (torch.sigmoid(h + shift) @ m[0].weight).sum()
    if how == "freed":
        m[0].shift.untyped_storage().resize_(0)
    else:
        with torch.no_grad():
            m[0].shift.add_(1)
    with pytest.raises(RuntimeError, match=r"`0\.shift`.*" + ("resized" if how == "freed" else "changed in place")):
        loss.backward()


def test_random_numbers_are_drawn_once():
    m = net()

    def state(scope):
        torch.manual_seed(4)
        with scope:
            loss = m(rows()).sum()
        loss.backward()
        return torch.get_rng_state()

    assert torch.equal(state(exact(m)), state(contextlib.nullcontext()))


def test_the_report_says_what_is_rebuilt():
    m = net()
    with exact(m) as saved:
        out = m(rows())
    how = {t.name: t.treatment for t in saved.report()}
    assert how["2.native_layer_norm.input"] == "recompute"
    assert how["0~1.gelu.input"] == "keep"
    assert saved.stored == saved.report().stored == saved.live_bytes
    assert "recompute" in str(saved.report())
    del out
    assert saved.live_bytes == 0
