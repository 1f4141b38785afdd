# SPDX-License-Identifier: Apache-2.0
"""More cases of rebuilt tensors: what is written between a forward pass and its backward pass, or in one of them."""

import numpy
import torch
from _rebuilt_cases import N, case, cpu_case, rows
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def weights(*sizes):
    generator = torch.Generator().manual_seed(4)
    return [nn.Parameter(torch.randn(n, N, generator=generator) * 0.1) for n in sizes]


def ended(loss, *parameters):
    loss.backward()
    return [loss.detach(), *(p.grad for p in parameters)]


@case
def one_part_then_the_other(scope):
    u, r, w = weights(N, 32, N)
    with scope():
        a = rows() @ u.detach()
        held = a @ w  # noqa: F841 - which saves it
        loss = (torch.sigmoid(a[:, :32] * 2) @ r).sum()  # is rebuilt from the left half
        right = a[:, 32:] * 3
        again = a.detach()
        again[:, 32:].zero_()
        again[:, :32].zero_()
        loss = loss + (right @ r).sum()
    return ended(loss, r)


@case
def two_parts_by_one_operation(scope):
    u, w = weights(N, N)
    with scope():
        a = rows() @ u
        loss = a.square().sum()
        b = rows() @ u.detach()
        loss = loss + (torch.sigmoid(b[64:] * 2) @ w).sum()
        torch._foreach_mul_([b[:64], b[64:]], 0.5)
        c = rows() @ u.detach()
        loss = loss + (torch.sigmoid(c[64:] * 2) @ w).sum()
        torch.aminmax(rows(), dim=1, out=(c[0:2].view(-1), c[64:66].view(-1)))
    return ended(loss, w)


@case
def a_result_larger_than_where_it_goes(scope):
    u, w = weights(N, N)
    with scope():
        a = rows() @ u.detach()
        loss = (torch.sigmoid(a * 2) @ w).sum()
        torch.mul(rows(), 3, out=a[:0])
    return ended(loss, w)


@case
def statistics_of_a_later_pass(scope):
    m = nn.Sequential(nn.BatchNorm1d(N), nn.Linear(N, N)).eval()
    with torch.no_grad():
        m[1].weight.copy_(weights(N)[0])
    with scope(m):
        loss = m(rows()).square().sum()
    m.train()
    with torch.no_grad():
        m(rows() * 3 + 1)
    return ended(loss, m[1].weight)


@case
def statistics_by_themselves(scope):
    (w,), m = weights(N), nn.BatchNorm1d(N)
    with scope(m):
        loss = (torch.sigmoid(rows() - m.running_mean) @ w).sum()
        torch.batch_norm_update_stats(rows(), m.running_mean, m.running_var, 0.1)
    return ended(loss, w)


@case
def what_a_mode_makes(scope):
    class Rounded(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, arguments=(), options=None):
            out = op(*arguments, **(options or {}))
            return out.bfloat16().float() if op is torch.ops.aten.sigmoid.default else out

    u, w = weights(N, N)
    with scope(), Rounded():
        h = rows() @ u
        loss = (torch.sigmoid(h) @ w).sum() + h.square().sum()
    return ended(loss, u, w)


@cpu_case
def memory_of_numpy(scope):
    u, w = weights(N, N)
    buffer, large = numpy.zeros(N, dtype=numpy.float32), rows().numpy().copy()
    leaf = torch.from_numpy(large).requires_grad_()
    products = []
    with scope():
        loss = (torch.exp(leaf * 0.2) @ w).sum()
        for i in range(3):
            buffer[:] = i
            products.append((rows() @ u) * torch.from_numpy(buffer))
        loss = loss + sum((torch.sigmoid(p) @ w).sum() for p in products)
    large[:] = 0
    return ended(loss, leaf, w)


@case
def through_a_conjugate(scope):
    u, w = weights(N, N)
    with scope():
        h = torch.complex(rows() @ u, rows() @ w)
        z = h * 2
        loss = (z * z).abs().sum()
        h.detach().conj().mul_(2j)
    return ended(loss, u, w)


@case
def another_type_of_the_same_bytes(scope):
    u, w = weights(N, N)
    with scope():
        x = rows() * 1
        mask = (x > 0).to(torch.uint8)
        loss = (rows() @ w).masked_fill(mask.view(torch.bool), 0).exp().sum() + (x @ u).sum()
    return ended(loss, u, w)


@case
def without_onednn(scope):
    u, w = weights(N, N)
    with torch.backends.mkldnn.flags(enabled=False), scope():
        loss = (nn.functional.gelu(rows() @ u) @ w).sum()
    return ended(loss, u, w)
