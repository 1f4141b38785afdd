# SPDX-License-Identifier: Apache-2.0
"""A small network, its steps, and what optimizers keep of them."""
import torch
from torch import nn
from torch.nn import functional

import compact

F32, BF16 = torch.float32, torch.bfloat16


def parameters(*shapes, dtype=F32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give_gradients(params, step, scale=1.0):
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 40)
        self.down = nn.Linear(40, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Shapes whose rows do not split evenly over two ranks: 33 words, 5 classes, one row of scales."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(33, 32)
        self.layers = nn.ModuleList([Block(), Block()])
        self.scale = nn.Parameter(torch.ones(1, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = self.embedding(x) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(step, rows=8):
    generator = torch.Generator().manual_seed(50 + step)
    return torch.randint(33, (rows,), generator=generator), torch.randint(5, (rows,), generator=generator)


def loss_of(net, step=0, take=slice(None)):
    x, y = batch(step)
    return functional.cross_entropy(net(x[take]).float(), y[take])


def train(net, optimizer, steps, take=slice(None)):
    for step in steps:
        optimizer.zero_grad()
        loss_of(net, step, take).backward()
        optimizer.step()


def tensors(optimizer):
    return [t for p in optimizer.state.values() for t in p.values() if isinstance(t, torch.Tensor)]


def same_bits(a, b):
    a, b = list(a), list(b)
    return len(a) == len(b) and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b))


def make(kind, net, **settings):
    return getattr(compact.optim, kind)(net.parameters() if kind == "AdamW" else net, **settings)


class InLists(torch.optim.Optimizer):
    """Keeps two tensors of each weight in a list, as some optimizers of others do."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", [torch.zeros_like(p), torch.zeros_like(p)])
                p.sub_(kept[0].add_(p.grad), alpha=group["lr"])
