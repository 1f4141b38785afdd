#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compact.token_log_probs beside TRL's two ways and the matrix products alone: time, and peak of what is allocated.

The head of Qwen2.5-0.5B: 2 x 2,048 tokens of width 896, a vocabulary of 151,936. Every way makes log probabilities and entropies, and gradients of
hidden states and head, or, where the head is frozen, of hidden states alone. The ways follow each other in one process, `--rounds`
times; times are medians, of the clock and of all threads together. Peaks are without hidden states, head and the gradients that a way gives back.

    python bench/token_log_probs.py --out bench/results/token-log-probs.md
"""
import argparse
import gc
import pathlib
import statistics
import time

import measuring
import torch
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

import compact


def given(a, dtype, frozen):
    torch.manual_seed(0)
    hidden = torch.randn(a.rows, a.length, a.width, dtype=dtype).requires_grad_()
    weight = (torch.randn(a.vocabulary, a.width, dtype=dtype) * 0.05).requires_grad_(not frozen)
    return hidden, weight, torch.randint(0, a.vocabulary, (a.rows, a.length))


def products(hidden, weight, targets):
    """The three products, or two, of logits that are made once and held."""
    h = hidden.detach().flatten(0, 1)
    with torch.no_grad():
        logits = h @ weight.t()
        return logits @ weight, logits.t() @ h if weight.requires_grad else None


def step(log_probs, entropy, hidden, weight):
    rates = torch.linspace(-1, 1, log_probs.numel()).view(log_probs.shape)
    entropy.detach()
    return torch.autograd.grad((log_probs * rates).sum(), [x for x in (hidden, weight) if x.requires_grad])


def ours(hidden, weight, targets):
    return step(*compact.token_log_probs(hidden, weight, targets, entropy=True), hidden, weight)


def trl_fused(hidden, weight, targets):
    found = ChunkedLogProbFunction.apply(hidden.flatten(0, 1), weight, None, targets.flatten(), 1.0, 32768, None, 1.0, ("log_probs", "entropy"))
    return step(*found[:2], hidden, weight)


def trl_logits(hidden, weight, targets):
    logits = hidden @ weight.t()
    log_probs = selective_log_softmax(logits, targets)
    with torch.no_grad():
        entropy = entropy_from_logits(logits)
    del logits
    return step(log_probs, entropy, hidden, weight)


WAYS = {
    "the products alone": products,
    "`compact.token_log_probs`": ours,
    "TRL's fused head": trl_fused,
    "logits, `selective_log_softmax`": trl_logits,
}


def measure(a, dtype, frozen):
    times, spent, peaks = {name: [] for name in WAYS}, {name: [] for name in WAYS}, {}
    for _ in range(a.rounds):
        for name, way in WAYS.items():
            x = given(a, dtype, frozen)
            with compact.Meter() as meter:
                start, before = time.perf_counter(), time.process_time()
                back = way(*x)
                times[name].append(time.perf_counter() - start)
                spent[name].append(time.process_time() - before)
            peaks[name] = meter.peak - sum(g.nbytes for g in back if g is not None)
            del x, back
            gc.collect()
            print(f"{dtype} frozen={frozen} {name}: {times[name][-1]:.2f} s, {peaks[name] / 2**30:.2f} GiB", flush=True)
    return {name: (statistics.median(times[name]), statistics.median(spent[name]), peaks[name]) for name in WAYS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--heads", default="trained,frozen")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    lines = measuring.origin_lines("Log probabilities of tokens", measuring.origin("cpu"))
    lines += ["", f"{a.rows} × {a.length:,} tokens of width {a.width}, a vocabulary of {a.vocabulary:,}, {a.threads} threads, {a.rounds} round(s). Log probabilities and entropies, and"]
    lines += ["gradients of hidden states and head. Peaks are what is allocated beside hidden states, head and their gradients; ratios are to the products alone."]
    for head in a.heads.split(","):
        for dtype in a.dtypes.split(","):
            found = measure(a, getattr(torch, dtype), head == "frozen")
            floor = found["the products alone"]
            lines += ["", f"## {head} head, {dtype}", "", "| way | time, s | ratio | CPU-seconds | ratio | peak, GiB |", "|---|---|---|---|---|---|"]
            for name, (clock, cpu, peak) in found.items():
                lines.append(f"| {name} | {clock:.1f} | {clock / floor[0]:.2f} | {cpu:.1f} | {cpu / floor[1]:.2f} | {measuring.gib(peak)} |")
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
