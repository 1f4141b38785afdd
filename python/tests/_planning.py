# SPDX-License-Identifier: Apache-2.0
"""The measured peak of a planned step."""
import gc

from _device import DEVICE
from conftest import make
import torch
from torch import nn

import compact
from compact.layers import masks


def measured(name, policy, given, optimizer=lambda p: torch.optim.AdamW(p, fused=True), clip=True, autocast=None,
             make=make):
    """The most that a step of `make(name)` takes, weights, gradients and moments included."""
    gc.collect()  # what dies while the meter counts would be taken off
    masks._last.result = None  # lengths of an earlier model's samples
    with compact.Meter() as meter:
        model = make(name)
        if policy == "gradient_checkpointing":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        elif policy != "plain":
            compact.apply(model, policy)
        parameters = list(model.parameters())
        optimizer = optimizer(parameters) if optimizer else None
        given = {key: t.clone() for key, t in given.items()}

        def step():
            with torch.autocast(DEVICE, autocast or torch.bfloat16, enabled=autocast is not None):
                loss = model(**given).loss
            loss.backward()
            del loss
            if clip:
                nn.utils.clip_grad_norm_(parameters, 1.0)
            if optimizer:
                optimizer.step()
            for p in parameters:
                p.grad = None

        step()
        meter.reset_peak()
        step()
        return meter.peak


def peaks(plan):
    return {row["policy"]: row["peak"] for row in plan["rows"]}
