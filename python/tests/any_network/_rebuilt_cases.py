# SPDX-License-Identifier: Apache-2.0
"""Cases that could break rebuilt tensors: functions of a scope, each of which gives tensors that must be the same under any."""

import contextlib
import gc

from _device import DEVICE
from _threads import in_threads
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import compact

N = 64
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def cpu_case(f):
    """A case on memory that NumPy shares."""
    return case(f) if DEVICE == "cpu" else f


def exact(model=None):
    return compact.saved_tensors("exact", model=model, least_elements=1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(N, N), nn.GELU(), nn.LayerNorm(N), nn.Linear(N, N), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(N, N))


def rows():
    return torch.randn(128, N, generator=torch.Generator().manual_seed(9))


def gradients(*modules):
    return [p.grad for m in modules for p in m.parameters()]


@case
def backward_twice(scope):
    m = net()
    with scope(m):
        loss = m(rows()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(m)


@case
def gradients_of_gradients_inside(scope):
    m, x = net(), rows().requires_grad_()
    with scope(m):
        (g,) = torch.autograd.grad(m[:3](x).square().sum(), x, create_graph=True)
        loss = g.square().mean()
    loss.backward()
    return gradients(m)


@case
def gradients_of_gradients_outside(scope):
    m, x = net(), rows().requires_grad_()
    with scope(m):
        loss = m[:3](x).square().sum()
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    g.square().mean().backward()
    return gradients(m)


@case
def written_inside(scope):
    m = net()
    with scope(m):
        h = m[0](rows())
        twice = h * 1.0
        y = torch.sigmoid(twice + 1)
        h.add_(5.0)
        loss = m[3](y * y).sum() + twice.sum()
    loss.backward()
    return gradients(m)


@case
def written_through_data_afterwards(scope):
    m = net()
    with scope(m):
        h = m[0](rows()).bfloat16()
        loss = m[3](torch.sigmoid((h * 2).float())).sum()
    h.data.zero_()
    loss.backward()
    return gradients(m)


@case
def freed_by_its_owner(scope):
    m = net()
    with scope(m):
        h = m[0](rows()).bfloat16()
        loss = m[3](torch.sigmoid((h * 2).float())).sum()
    h.untyped_storage().resize_(0)
    loss.backward()
    return gradients(m)


@cpu_case
def written_by_numpy(scope):
    m = net()
    with scope(m):
        scaled = (rows() > 0).float() * 2
        scaled.numpy()[0, :] = 3
        loss = m[3](m[0](rows()) * (scaled + 1).exp()).sum()
    loss.backward()
    return gradients(m)


@cpu_case
def inputs_that_numpy_owns(scope):
    m, array = net(), rows().numpy().copy()
    with scope(m):
        loss = (m[0](rows()) * (torch.from_numpy(array) * 2).exp()).sum()
    array[:] = 0
    loss.backward()
    return gradients(m)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        y = a.exp()
        y.numpy()[0, 0] = 2  # as kernels write that PyTorch does not see
        z = y * 2
        ctx.save_for_backward(y, z)
        return z

    @staticmethod
    def backward(ctx, g):
        y, z = ctx.saved_tensors
        return g * z + y


@cpu_case
def functions_of_users(scope):
    m = net()
    with scope(m):
        loss = Exponential.apply(m[0](rows())).sigmoid().mean()
    loss.backward()
    return gradients(m)


@case
def checkpoint_inside(scope):
    m = net()
    with scope(m):
        loss = m[3:](F.gelu(checkpoint(m[:3], rows(), use_reentrant=False))).sum()
    loss.backward()
    return gradients(m)


@case
def reentrant_checkpoint_inside(scope):
    m = net()
    with scope(m):
        loss = m[3:](F.gelu(checkpoint(m[:3], rows().requires_grad_(), use_reentrant=True))).sum()
    loss.backward()
    return gradients(m)


@case
def around_it_a_checkpoint(scope):
    m = net()

    def part(x):
        with scope(m):
            return m[:3](x)

    m[3:](checkpoint(part, rows().requires_grad_(), use_reentrant=True)).sum().backward()
    return gradients(m)


@case
def an_exception_halfway(scope):
    m = net()
    with contextlib.suppress(KeyError), scope(m):
        m(rows())
        raise KeyError
    with contextlib.suppress(RuntimeError), scope(m):
        m(rows()).add_(torch.ones(3))  # inside of an operation
    torch.manual_seed(3)
    with scope(m):
        loss = m(rows()).sum()
    loss.backward()
    return gradients(m)


@case
def backward_on_another_thread(scope):
    m = net()
    with scope(m):
        loss = m(rows()).sum()
    in_threads(lambda loss: loss.backward(), [loss])
    return gradients(m)


@case
def two_threads_at_once(scope):
    models = [net(), net()]

    def work(m):
        for i in range(20):
            with scope(m):
                loss = torch.sin(F.gelu(m[0](rows() + i)).exp().clamp(max=9)).sum()
            loss.backward()

    in_threads(work, models)
    return gradients(*models)


@case
def backward_inside(scope):
    m = net()
    with scope(m):
        m(rows()).sum().backward()
        m(rows()).sum().backward()
    return gradients(m)


@case
def backward_inside_autocast(scope):
    m = net()
    with torch.autocast(DEVICE, torch.bfloat16):
        with scope(m):
            loss = m(rows()).float().sum()
        loss.backward()
    return gradients(m)


@case
def flow_that_depends_on_values(scope):
    m, h = net(), rows()
    with scope(m):
        for _ in range(3):
            h = m[0](h) if h.sum() > 0 else m[3](h).tanh()
        loss = (h[h > 0] * 2).exp().clamp(max=10).sum()
    loss.backward()
    return gradients(m)


@case
def vmap_inside(scope):
    m = net()
    with scope(m):
        loss = m[3](torch.func.vmap(lambda v: torch.tanh(v) * v)(F.gelu(m[0](rows())))).sum()
    loss.backward()
    return gradients(m)


@case
def an_optimizer_in_the_backward_pass(scope):
    m = net()
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda p: (p.data.add_(p.grad, alpha=-0.1), None)[1])
    with scope(m):
        loss = m(rows()).square().mean()
    loss.backward()
    return [p.detach() for p in m.parameters()]


@case
def an_optimizer_and_a_branch_without_gradient(scope):
    b, w, v = (nn.Parameter(rows()[:n].clone()) for n in (1, N, N))
    b.register_post_accumulate_grad_hook(lambda p: (p.data.add_(p.grad, alpha=-0.1), None)[1])
    with scope():
        y = ((rows() @ v).bfloat16() + b.bfloat16()).float()
        loss = (torch.exp(y.detach() * 0.1) * (rows() @ w)).mean() + y.sum() * 1e-3
    loss.backward()
    return [b.grad, w.grad, v.grad]


@case
def hooks_that_change_what_passes(scope):
    m = net()
    m[1].register_forward_hook(lambda *given: given[-1] * 2)
    m[0].register_full_backward_hook(lambda _, gi, go: tuple(None if g is None else g * 0.5 for g in gi))
    with scope(m):
        h = m[:3](rows().requires_grad_())
        h.register_hook(lambda g: g * 3)
        loss = m[3:](h).sum()
    loss.backward()
    return gradients(m)


@case
def its_model_is_gone(scope):
    m, x = net(), rows().requires_grad_()
    with scope(m):
        loss = m(x).sum()
    del m
    gc.collect()
    loss.backward()
    return [x.grad]


@case
def statistics_of_norms(scope):
    m = nn.Sequential(nn.Conv1d(N, N, 3), nn.BatchNorm1d(N), nn.ReLU(inplace=True), nn.Conv1d(N, N, 1), nn.BatchNorm1d(N), nn.Sigmoid())
    m.load_state_dict({k: torch.full_like(v, 0.5) for k, v in m.state_dict().items()})
    for frozen in (False, True, False):
        m[1].train(not frozen)
        with scope(m):
            loss = m(rows().view(2, N, N)).square().sum()
        loss.backward()
    return [*gradients(m), *m.buffers()]


@case
def complex_numbers_and_others(scope):
    w = nn.Parameter(rows())
    with scope():
        z = torch.fft.rfft(F.gelu(w) * 2)
        loss = (z * z.conj()).real.mean() + torch.view_as_real(z).sin().sum() + (w.to_sparse() * 2).to_dense().exp().mean()
    loss.backward()
    return [w.grad]


@case
def sizes_0_and_1_and_strides(scope):
    w = nn.Parameter(rows())
    with scope():
        loss = w[:0].exp().sum() + w[0, 0].exp().sin() + w.t()[::2].sigmoid().exp().sum() + w[::3, 1::2].expand(2, -1, -1).cos().exp().mean()
    loss.backward()
    return [w.grad]


@case
def lists_of_tensors_and_indices(scope):
    w = nn.Parameter(rows())
    with scope():
        y = torch.stack(torch.cat([w.exp(), w.sin()]).split(32)).tanh()
        y = y[torch.tensor([1, 0, 1]), :, torch.tensor([3, 4, 5])].exp()
        loss = (y * torch.where(y > 1, y, 0.5)).sum()
    loss.backward()
    return [w.grad]
