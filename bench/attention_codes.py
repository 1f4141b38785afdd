#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fused attention whose queries, keys and values are held in codes: errors of its gradients by the deviation of its
scores, of one pass and of the mean of several, what is held, and the time of a forward and backward pass beside plain
PyTorch's, its forward pass and a copy of its tensors. In float32 on the CPU, with torch's threads. Queries, keys and
values are normal, not a network's.

  bench/attention_codes.py [--rounds N]     in an environment with the package
"""
import argparse
import contextlib
import statistics
import time

import torch
from torch.nn import functional as F

import compact


PASSES = 8  # of roundings, seeds 0 to 7, of one set of tensors


def tensors(deviation, samples=2, heads=4, tokens=128, width=64):
    draw = torch.Generator().manual_seed(1)
    q, k, v, g = (torch.randn(samples, heads, tokens, width, generator=draw) for _ in range(4))
    # Not leaves, which are never encoded.
    return [t.requires_grad_() * s for t, s in ((q, deviation**0.5), (k, deviation**0.5), (v, 1))], g


def gradients(parts, g, policy=None):
    with compact.saved_tensors(policy) if policy else contextlib.nullcontext() as saved:
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
    return torch.autograd.grad(y, parts, g), saved


def error(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


def seconds(run):
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timed, in turn, after one that is not; at least 1")
    rounds = max(1, parser.parse_args().rounds)
    policies = {bits: f"slot * = quantize:bits={bits}" for bits in (4, 8)}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("deviation  bits  error of q, k, v: mean of passes, lowest to highest of q; of their mean")
    for deviation in (1, 4, 16):
        parts, g = tensors(deviation)
        wanted, _ = gradients(parts, g)
        for bits, policy in policies.items():
            passes = []
            for seed in range(PASSES):
                torch.manual_seed(seed)
                passes.append(gradients(parts, g, policy)[0])
            errors = [[error(a, b) for a, b in zip(got, wanted, strict=True)] for got in passes]
            of_mean = [error(sum(a) / PASSES, b) for a, b in zip(zip(*passes, strict=True), wanted, strict=True)]
            means = [statistics.mean(e) for e in zip(*errors, strict=True)]
            queries = [e[0] for e in errors]
            print(
                f"{deviation:9}  {bits:4}  {means[0]:.3f} {means[1]:.3f} {means[2]:.3f}  "
                f"{min(queries):.3f} to {max(queries):.3f}  {of_mean[0]:.3f} {of_mean[1]:.3f} {of_mean[2]:.3f}"
            )
    parts, g = tensors(1, samples=4, heads=8, tokens=512)
    print("\n4 x 8 heads x 512 tokens x 64")
    for policy in policies.values():
        print(gradients(parts, g, policy)[1].report())
    runs = {
        "copy of q, k, v": lambda: [t.detach().clone() for t in parts],
        "forward pass": lambda: F.scaled_dot_product_attention(*parts, is_causal=True),
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
        median, lowest, highest = (1e3 * f(all_[1:]) for f in (statistics.median, min, max))
        print(f"{name:16} {median:8.2f} ms ({lowest:.2f} to {highest:.2f})  {median / (1e3 * plain):5.2f} of plain")


if __name__ == "__main__":
    main()
