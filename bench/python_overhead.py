#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time that the Python package adds to a call of a layer that is served, and to a tensor that a scope holds.

A layer's call beside the call of its block alone, which computes; a chain of small operations under
compact.saved_tensors beside the same without, and under hooks in Python that do nothing. Medians of rounds that run each way in turn; the floor
is the call of an empty function.

    python bench/python_overhead.py
"""
import argparse
import datetime
import platform
import statistics
import time

import peft
import torch
import transformers

import compact
from compact.layers.served_layer import forward
from compact.layers.patched_forward import STATE


def model(lora):
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    made = transformers.LlamaForCausalLM(config).train()
    if lora:
        made = peft.get_peft_model(made, peft.LoraConfig(r=4, target_modules="all-linear"))
    return compact.apply(made, "exact")


def microseconds(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count * 1e6


def medians(rounds, count, **calls):
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(microseconds(call, count))
    return {name: statistics.median(times) for name, times in found.items()}


def of_a_layer(lora, rounds):
    made = model(lora)
    layer = [m for m in made.modules() if hasattr(m, "self_attn")][1]  # the first reads what all share
    x = torch.randn(1, 4, 32, requires_grad=True)
    tables = torch.randn(1, 4, 16), torch.randn(1, 4, 16)
    arguments = {"attention_mask": None, "position_embeddings": tables, "use_cache": False}
    forward(layer, x, **arguments)  # what is made once
    state = layer.__dict__[STATE]
    weights = state.weights()
    cos, sin = (t[0, :, :8].contiguous() for t in tables)
    return medians(
        rounds, 2000,
        call=lambda: forward(layer, x, **arguments),
        block=lambda: state.block.forward(x, weights, cos, sin, None, True),
        floor=lambda: None,
    )  # fmt: skip


def of_a_tensor(rounds, elements, operations=200):
    w = torch.ones(elements, requires_grad=True)
    scope = compact.saved_tensors("off")

    def chain():
        y = w
        for _ in range(operations):
            y = y * 1.0001 + w.exp()  # exp saves what it makes
        y.sum().backward()
        w.grad = None

    def scoped():
        with scope:
            chain()

    def empty():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
            chain()

    def enter():
        with scope:
            pass

    found = medians(rounds, 20, scoped=scoped, empty=empty, plain=chain, enter=enter)
    return {name: t / (1 if name == "enter" else operations) for name, t in found.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=9)
    a = p.parse_args()
    torch.set_num_threads(1)
    print(f"Microseconds, one thread of {platform.machine()}, torch {torch.__version__}, {datetime.date.today()}, `bench/python_overhead.py`\n")
    print("| a call of | in all | block alone | added |\n|---|---|---|---|")
    for name, lora in (("a LLaMA's layer", False), ("the same with seven adapters (LoRA)", True)):
        found = of_a_layer(lora, a.rounds)
        print(f"| {name} | {found['call']:.1f} | {found['block']:.1f} | {found['call'] - found['block']:.1f} |")
    print(f"| an empty function | {found['floor']:.2f} | | |\n")
    print("| forward and backward of a saved tensor | in all | plain | added |\n|---|---|---|---|")
    for elements, what in ((8, "of 8 elements"), (2048, "of 2,048 elements")):
        found = of_a_tensor(a.rounds, elements)
        print(f"| {what}, under hooks of PyTorch that hold it as it is | {found['empty']:.1f} | {found['plain']:.1f} | {found['empty'] - found['plain']:.1f} |")
        print(f"| {what}, under compact.saved_tensors | {found['scoped']:.1f} | {found['plain']:.1f} | {found['scoped'] - found['plain']:.1f} |")
    print(f"| entering and leaving the scope | {found['enter']:.1f} | | |")


if __name__ == "__main__":
    main()
