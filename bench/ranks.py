#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bytes that each of several processes takes and sends in a step, by `compact plan`, beside those of
DistributedDataParallel (an all-reduce of a gradient for every parameter, which all processes keep with
Adam's moments). A sum that all get is counted twice, as in ZeRO's paper. Nothing is timed.

    python bench/ranks.py --ranks 8 --models llama-60m,llama-350m,llama-7b
"""
import argparse
import json
import subprocess
import tempfile

from measuring import ROOT

PRESETS = {
    "exact": ["--preset", "exact"],
    "compact, r = n/4": ["--preset", "compact"],
    "compact, r = n/8": ["--preset", "compact", "--rank", "0.125"],
}
STAGES = range(4)
BF16 = 2  # bytes


def plan(a, model, preset, zero, accumulation):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [a.program, "plan", "--model", model, *PRESETS[preset], "--world_size", a.ranks, "--zero", zero,
                   "--dtype", "bfloat16", "--reduce_dtype", "bfloat16", "--device", "cuda",
                   "--gradient_accumulation_steps", accumulation, "--json", out.name]  # fmt: skip
        subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=ROOT / "build/compact")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--models", default="llama-60m,llama-350m,llama-7b")
    p.add_argument("--accumulation", type=int, default=4, help="micro-batches of the second table")
    a = p.parse_args()
    print(f"{a.ranks} processes of 8 × 256 tokens, bfloat16\n")
    print("| MB sent a step | DDP | zero 0 | 1 | 2 | 3 | zero 1 of DDP |\n|---|---|---|---|---|---|---|")
    peaks = []
    for model in a.models.split(","):
        for preset in PRESETS:
            found = [plan(a, model, preset, zero, 1) for zero in STAGES]
            sent = [f["ranks"]["sent_bytes_per_step"] / 1e6 for f in found]
            ddp = 2 * BF16 * found[0]["parameters"] / 1e6
            figures = " | ".join(f"{x:,.0f}" for x in [ddp, *sent])
            print(f"| {model}, {preset} | {figures} | {sent[1] / ddp:.2f} |")
            summed = [plan(a, model, preset, zero, a.accumulation) for zero in STAGES]
            peaks.append((f"{model}, {preset}", [f["reserved_bytes"] / 2**30 for f in found + summed]))
    print(f"\n| GiB reserved | zero 0, 1, 2, 3 | of {a.accumulation} micro-batches |\n|---|---|---|")
    for name, gib in peaks:
        print(f"| {name} | {', '.join(f'{x:.1f}' for x in gib[:4])} | {', '.join(f'{x:.1f}' for x in gib[4:])} |")


if __name__ == "__main__":
    main()
