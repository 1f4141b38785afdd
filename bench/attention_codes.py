#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fused attention whose queries, keys and values are held in codes: errors of its gradients by the deviation of its
scores, what is held, and the time of a forward and backward pass beside plain PyTorch's and a copy of its tensors.

  bench/attention_codes.py [--rounds N]     in an environment with the package
"""
import argparse
import contextlib
import statistics
import time

import torch
from torch.nn import functional as F

import compact


def tensors(deviation, samples=2, heads=4, tokens=128, width=64):
    draw = torch.Generator().manual_seed(1)
    q, k, v, g = (torch.randn(samples, heads, tokens, width, generator=draw) for _ in range(4))
    return [(t * s).requires_grad_() for t, s in ((q, deviation**0.5), (k, deviation**0.5), (v, 1))], g


def gradients(parts, g, policy=None):
    with compact.saved_tensors(policy) if policy else contextlib.nullcontext() as saved:
        y = F.scaled_dot_product_attention(*[t * 1 for t in parts], is_causal=True)
    return torch.autograd.grad(y, parts, g), saved


def seconds(run):
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    policies = {bits: f"slot * = quantize:bits={bits}" for bits in (4, 8)}
    print("deviation  bits  error of q, k, v")
    for deviation in (1, 4, 16):
        parts, g = tensors(deviation)
        wanted, _ = gradients(parts, g)
        for bits, policy in policies.items():
            got, _ = gradients(parts, g, policy)
            errors = [((a - b).norm() / b.norm()).item() for a, b in zip(got, wanted, strict=True)]
            print(f"{deviation:9}  {bits:4}  " + "  ".join(f"{e:.3f}" for e in errors))
    parts, g = tensors(1, samples=4, heads=8, tokens=512)
    _, saved = gradients(parts, g, policies[4])
    print(f"\n4 x 8 heads x 512 tokens x 64: {saved.report()}")
    runs = {
        "copy of q, k, v": lambda: [t.detach().clone() for t in parts],
        "plain": lambda: gradients(parts, g),
        "4 bits": lambda: gradients(parts, g, policies[4]),
        "8 bits": lambda: gradients(parts, g, policies[8]),
    }
    times = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            times[name].append(seconds(run))
    plain = statistics.median(times["plain"][1:])
    for name, all_ in times.items():
        median = statistics.median(all_[1:])
        print(f"{name:16} {1e3 * median:8.2f} ms  {median / plain:5.2f} of plain")


if __name__ == "__main__":
    main()
