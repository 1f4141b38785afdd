# SPDX-License-Identifier: Apache-2.0
"""Networks of which no layer is known, and a step of them."""

import torch
from torch import nn
import transformers



class Mixed(nn.Module):
    """A network of one's own, of which some layers read a condition."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv1d(8, 16, 3, padding=1), nn.Linear(16, 4)
        self.norm, self.scale = nn.GroupNorm(4, 16), nn.Linear(4, 16)

    def forward(self, x, condition):
        h = nn.functional.silu(self.norm(self.first(x)) * (1 + self.scale(condition)[:, :, None]))
        return self.last(nn.functional.dropout(h, 0.3, self.training).relu_().mean(2))


class ReadsValues(Mixed):
    def forward(self, x, condition):
        h = super().forward(x, condition).sum()
        return h if h.item() > 0 else -h


def network():
    torch.manual_seed(0)
    return Mixed(), (torch.randn(16, 8, 64), torch.randn(16, 4))


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=90, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ids = torch.randint(0, 90, (2, 24))
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def step(model, given):
    torch.manual_seed(5)
    out = model(**given) if isinstance(given, dict) else model(*given)
    loss = out.loss if isinstance(given, dict) else out.square().mean()
    loss.backward()
    got = [loss.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return got


def same(a, b):
    return all(map(torch.equal, a, b))
