# SPDX-License-Identifier: Apache-2.0
"""A network that saves tensors of many kinds, and its passes."""
import contextlib

from _device import DEVICE
import pytest
import torch
from torch import nn

EIGHT = "slot * = quantize:bits=8"

FOUR = "slot * = quantize:bits=4"


class Net(nn.Module):
    """Products, a norm, dropout, an embedding, max pooling, a shared and a frozen weight, a buffer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 64)
        self.up = nn.Linear(64, 96)
        self.norm = nn.LayerNorm(96)
        self.frozen = nn.Linear(96, 96).requires_grad_(False)
        self.register_buffer("basis", torch.randn(96, 96))
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        h = torch.relu(self.up(self.table(ids)))
        h = nn.functional.dropout(self.norm(h), 0.2, self.training)
        h = self.frozen(h) * torch.sigmoid(h @ self.basis)
        h = nn.functional.leaky_relu(nn.functional.linear(h, self.up.weight.t()))
        h = nn.functional.max_pool2d(self.conv(h.transpose(1, 2)).unsqueeze(0), 2).squeeze(0)
        return self.head(torch.where(h > 0, h, 2 * h).repeat(1, 2, 1).transpose(1, 2)).float().logsumexp(-1).mean()


def net():
    torch.manual_seed(1)
    return Net(), torch.randint(0, 300, (8, 32))


def step(model, ids, scope=None, autocast=False, seed=2):
    """Gradients of one pass."""
    model.zero_grad()
    torch.manual_seed(seed)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast), scope or contextlib.nullcontext():
        loss = model(ids)
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def distance(a, b):
    a, b = (torch.cat([g.flatten().double() for g in grads.values()]) for grads in (a, b))
    return float((a - b).norm() / b.norm())


def hooks_in_force():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert hooks_in_force() is None
