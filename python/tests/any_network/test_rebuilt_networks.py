# SPDX-License-Identifier: Apache-2.0
"""saved_tensors("exact") over networks of many kinds: every bit of three steps, and how much is held."""

import gc

import pytest
import torch
from _any_networks import NETWORKS, train
from _device import DEVICE

import compact

# Bytes held after the forward pass as a part of PyTorch's: float32, bfloat16, autocast. Chunks of a
# float32 mask (dropout) and the like aside, what is held are results of products and attention.
HELD = {
    "llama": (0.55, 0.48, 0.34),
    "llama_eager": (0.46, 0.39, 0.36),
    "mixtral": (0.54, None, 0.45),
    "qwen3_moe": (0.54, 0.50, 0.32),
    "bert": (0.50, 0.50, 0.38),
    "gpt2": (0.46, 0.44, 0.39),
    "nano_gpt": (0.60, 0.64, 0.42),
    "vit": (0.62, 0.63, 0.35),
    "t5": (0.43, 0.37, 0.34),
    "whisper": (0.70, 0.70, 0.52),
    "qwen2_vl": (0.54, 0.54, 0.38),
    "resnet50": (0.61, 0.61, 0.49),
    "gat": (0.15, 0.17, None),
    "lstm_cells": (0.77, 0.92, 0.86),
    "lstm": (0.96, 0.98, 0.58),
}
# There PyTorch's masks of dropout have a byte for each element, not four, other kernels of attention
# hold other tensors, and cells of an LSTM are one operation.
ON_GPU = {
    "llama": (0.60, 0.48, 0.34),
    "llama_eager": (0.51, 0.39, 0.40),
    "mixtral": (0.59, None, 0.45),
    "qwen3_moe": (0.59, 0.50, 0.32),
    "bert": (0.58, 0.56, 0.38),
    "gpt2": (0.51, 0.47, 0.39),
    "nano_gpt": (0.64, 0.64, 0.42),
    "t5": (0.50, 0.42, 0.34),
    "whisper": (0.76, 0.76, 0.58),
    "gat": (0.17, 0.19, None),
    "lstm_cells": (0.92, 0.97, 0.94),
    "lstm": (1.00, 1.00, 0.78),
}
if DEVICE != "cpu":
    HELD |= ON_GPU


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["f32", "bf16", "autocast"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_bit_and_fewer_bytes(name, kind):
    limit = HELD[name][["f32", "bf16", "autocast"].index(kind)]
    if limit is None:
        pytest.skip("PyTorch itself does not run this")
    wanted, plain = train(name, kind)
    scopes = []

    def scope_of(model):
        scopes.append(compact.saved_tensors("exact", model=model))
        return scopes[0]

    got, held = train(name, kind, scope_of)
    assert got.keys() == wanted.keys()
    assert [n for n in wanted if not torch.equal(got[n], wanted[n])] == []
    assert held <= (limit + 0.02) * plain, f"{held / plain:.3f} is held, not {limit}"
    gc.collect()
    assert scopes[0].live_bytes == 0
