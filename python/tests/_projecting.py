# SPDX-License-Identifier: Apache-2.0
"""Policies with projected gradients, the carriers of a model, and steps."""
from conftest import inputs

import compact
from compact.projected_weights.carriers import Carrier

PERIOD = 4
TEXT = f"""slot role:{{norm,heads,gate,product}} = recompute
slot role:logits = chunk
grad layers.*.attn.qkv = project:rank=0.25,period={PERIOD}
grad layers.*.mlp.{{gate_up,up,down}} = project:rank=0.5,period={PERIOD}
"""
LLAMA = TEXT.replace("{gate_up,up,down}", "{gate_up,down}")


def policy_of(name):
    if name in ("gpt2", "bert", "roberta", "vit"):
        text = TEXT.replace("{gate_up,up,down}", "{up,down}").replace("{norm,heads,gate,product}", "norm")
        return text if name == "gpt2" else text.replace("slot role:logits = chunk\n", "")
    return LLAMA


def carriers(model):
    return {n.removesuffix(".carrier"): p for n, p in model.named_parameters() if isinstance(p, Carrier)}


def projection(c):
    return c.projected.matrix(c.weight.device, c.weight.dtype)


def run(model, optimizer, steps):
    losses = []
    for step in steps:
        given = inputs("llama")
        given["input_ids"] = (given["input_ids"] + step) % 200
        given["labels"] = given["input_ids"]
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


MAKERS = {
    "AdamW": lambda model: compact.optim.AdamW(model.parameters(), lr=1e-2),
    "AdamW, f8": lambda model: compact.optim.AdamW(model.parameters(), lr=1e-2, moments="f8"),
    "Muon": lambda model: compact.optim.Muon(model, lr=1e-2),
}
