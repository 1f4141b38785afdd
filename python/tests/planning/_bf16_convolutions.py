# SPDX-License-Identifier: Apache-2.0
"""A process that makes bfloat16 products and convolutions of float32 ones; prints what it finds as JSON."""
import json
import pathlib
import sys

sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
from _planning import measured
import torch
from torch import nn
import transformers

import compact


def make(_):
    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 2, 1, 1], "layer_type": "basic"}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=10))


def found():
    torch.manual_seed(1)
    layer, x = nn.Conv2d(64, 128, 3, 2, 1, groups=2), torch.randn(4, 64, 57, 56)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    g = torch.randn_like(y)
    y.backward(g)
    other = nn.Conv2d(64, 128, 3, 2, 1, groups=2)
    other.load_state_dict({name: t.bfloat16() for name, t in layer.state_dict().items()})
    z = other(x.bfloat16().float())
    gw = torch.autograd.grad(z, other.weight, g.float())[0]
    given = {"pixel_values": torch.randn(48, 3, 96, 96), "labels": torch.zeros(48, dtype=torch.long)}
    plan = compact.plan(make(""), given, policies=("plain", "exact"), autocast=torch.bfloat16)
    return {
        "how": compact.base.library.ops.bf16_products(),
        "forward": torch.equal(y, z.bfloat16()),
        "weight": torch.equal(layer.weight.grad, gw.bfloat16().float()),
        "beside plans": [measured("", row["policy"], given, autocast=torch.bfloat16, make=make) - row["peak"] for row in plan["rows"]],
    }


if __name__ == "__main__":
    print(json.dumps(found()))
