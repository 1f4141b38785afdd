#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak against time of networks that the library does not know, under budgets of what they save.

A step is a forward and a backward pass with compact.saved_tensors("exact", budget=...), beside plain
PyTorch and, where the model has it, its own checkpointing of every block. Peaks are exact bytes of
tensors beyond the weights, all gradients included. Ways take turns; times are medians. Gradients
of all ways are compared in bits. The floor is the time of the plain step's products alone, at the
speed of a large one.

    python bench/any_budget.py --threads 2 --rounds 9
"""
import argparse
import gc
import os
import pathlib
import statistics
import sys
import time

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import compact

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python/tests"))
import _any_networks  # noqa: E402

TOKENS, WIDTH, LAYERS = (2, 256), 192, 12
PARTS = ("60%", "50%", "40%", "30%", "25%", "20%")


def decoder(kind, **settings):
    ids = torch.randint(10, 1024, TOKENS)
    config = getattr(transformers, f"{kind}Config")(vocab_size=1024, use_cache=False, attn_implementation="sdpa", **settings)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(config), lambda m: m(input_ids=ids, labels=ids).loss


def gated(kind, **settings):
    return decoder(kind, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=6, num_key_value_heads=2, **settings)


NETWORKS = {
    "Llama": lambda: gated("Llama", intermediate_size=512),
    "Mixtral": lambda: gated("Mixtral", intermediate_size=256, num_local_experts=4, num_experts_per_tok=2),
    "GPT-2": lambda: decoder("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=6, n_positions=TOKENS[1], attn_pdrop=0, resid_pdrop=0, embd_pdrop=0),
    "ResNet-50": _any_networks.resnet50,
}


def step(model, loss_of, scope):
    """Seconds, peak in bytes and gradients of a step."""
    for p in model.parameters():
        p.grad = None
    gc.collect()
    torch.manual_seed(1)
    with compact.Meter() as meter:
        start = time.perf_counter()
        if scope is None:
            loss = loss_of(model)
        else:
            with scope:
                loss = loss_of(model)
        loss.backward()
        seconds = time.perf_counter() - start
    return seconds, meter.peak, [p.grad for p in model.parameters() if p.grad is not None]


def seconds_of_products(model, loss_of):
    counter = FlopCounterMode(display=False)
    with counter:
        loss_of(model).backward()
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - start)
    return counter.get_total_flops() / (2 * 1024**3) * min(times)


def measure(name, a):
    torch.manual_seed(0)
    model, loss_of = NETWORKS[name]()
    model.train()
    ways = {"PyTorch": None}
    if hasattr(model, "gradient_checkpointing_enable"):
        ways["checkpointing of every block"] = None
    off = compact.saved_tensors("off", model=model)
    step(model, loss_of, off)
    for part in PARTS:
        # In bytes, so that what cannot be kept is refused.
        ways[f"budget {part}"] = compact.saved_tensors("exact", model=model, budget=int(off.bytes * float(part[:-1]) / 100))
    ways["exact, no budget"] = compact.saved_tensors("exact", model=model)
    times, peaks, refused, wanted = {}, {}, {}, None
    for turn in range(a.rounds + 1):
        for way, scope in ways.items():
            if way in refused:
                continue
            if "every block" in way:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            try:
                seconds, peaks[way], gradients = step(model, loss_of, scope)
            except ValueError as error:
                refused[way] = str(error)
                continue
            finally:
                if "every block" in way:
                    model.gradient_checkpointing_disable()
            if turn:
                times.setdefault(way, []).append(seconds)
            else:
                wanted = wanted or gradients
                assert all(map(torch.equal, gradients, wanted)), f"{way}: other gradients"
    floor = seconds_of_products(model, loss_of)
    plain, peak = statistics.median(times["PyTorch"]), peaks["PyTorch"]
    print(f"\n## {name}\n\n| | held + rebuilt at a time | peak MiB | beside PyTorch | step s | beside PyTorch |\n|---|---|---|---|---|---|")
    for way, scope in ways.items():
        if way in refused:
            print(f"| {way} | refused | | | | |")
            continue
        seconds = statistics.median(times[way])
        held = "" if scope is None else f"{scope.stored / off.bytes:.2f} + {scope.span / off.bytes:.2f}"
        print(f"| {way} | {held} | {peaks[way] / 2**20:.1f} | {peaks[way] / peak:.3f} | {seconds:.3f} | {seconds / plain:.2f} |")
    print(f"| products alone | | | | {floor:.3f} | {floor / plain:.2f} |")
    gradients = sum(p.nbytes for p in model.parameters())
    print(f"\nSaved: {off.bytes / 2**20:.1f} MiB; gradients: {gradients / 2**20:.1f} MiB.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(a.threads)
    for name in a.networks:
        measure(name, a)


if __name__ == "__main__":
    main()
