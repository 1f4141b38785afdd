#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory and time of a step of long sequences: two layers of LLaMA-7B's width, bfloat16 throughout, on a CPU.

Every way trains in a fresh process: forward and backward, all gradients, no optimizer, tokens of no meaning; the times are those of one step
after a short one. `workspace` is the peak less weights, gradients and the inputs of layers. The floor is the step's matrix products alone.

    python bench/long_sequences.py --tokens 4096 16384 --out bench/results/long-sequences.md
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

import measuring

WIDTH, MLP, LAYERS, VOCABULARY = 4096, 11008, 2, 4096
WAYS = {"PyTorch": "plain", "gradient_checkpointing": "checkpoint", "apply recompute": "recompute", "apply tiled": "tiled"}


def run_one(way, tokens):
    """One way in this process; its figures as JSON."""
    import torch
    import transformers

    import compact

    torch.manual_seed(0)
    with compact.Meter() as meter:
        config = transformers.LlamaConfig(hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=32, vocab_size=VOCABULARY, max_position_embeddings=tokens)
        model = transformers.LlamaForCausalLM(config).bfloat16().train()
        if way == "checkpoint":
            model.gradient_checkpointing_enable()
        elif way != "plain":
            compact.apply(model, way)

        def step(length):
            ids = torch.randint(0, VOCABULARY, (1, length))
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            norm = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm().item()
            model.zero_grad(set_to_none=True)
            return norm

        step(64)
        meter.reset_peak()
        begin = time.perf_counter()
        norm = step(tokens)
        seconds = time.perf_counter() - begin
        weights = sum(p.nbytes for p in model.parameters())
        inputs = (LAYERS + 1) * tokens * WIDTH * 2
        print(json.dumps({"peak": meter.peak, "workspace": meter.peak - 2 * weights - inputs, "seconds": seconds, "norm": norm}))


def floor(tokens):
    """Seconds of the products of a step, made by themselves: forward, and both gradients."""
    import torch

    total = 0.0
    for inner, outer, times in ((WIDTH, 3 * WIDTH, LAYERS), (WIDTH, WIDTH, LAYERS), (WIDTH, 2 * MLP, LAYERS), (MLP, WIDTH, LAYERS), (WIDTH, VOCABULARY, 1)):
        rows = min(tokens, 4096)
        x, w, gy = (torch.randn(*size, dtype=torch.bfloat16) for size in ((rows, inner), (outer, inner), (rows, outer)))
        x @ w.t()
        begin = time.perf_counter()
        x @ w.t(), gy @ w, gy.t() @ x
        total += (time.perf_counter() - begin) * times * tokens / rows
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--note", help="a sentence on what else the machine did")
    parser.add_argument("--way", help="one way, in this process")
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    if a.way:
        return run_one(a.way, a.tokens[0])
    lines = measuring.origin_lines("Long sequences", measuring.origin("cpu"))
    lines += ["", f"{LAYERS} layers of width {WIDTH} and {MLP}, bfloat16, one sequence; GiB. `norm` is that of all gradients.{' ' + a.note if a.note else ''}"]
    for tokens in a.tokens:
        lines += ["", f"## {tokens:,} tokens: products alone {floor(tokens):.0f} s", "", "| way | peak | workspace | seconds | norm |", "|---|---|---|---|---|"]
        for name, way in WAYS.items():
            done = subprocess.run([sys.executable, __file__, "--way", way, "--tokens", str(tokens)], capture_output=True, text=True)
            print(name, tokens, done.stdout[-300:], done.stderr[-300:] if done.returncode else "", flush=True)
            if done.returncode:
                lines.append(f"| {name} | failed | | | |")
                continue
            f = json.loads(done.stdout.splitlines()[-1])
            lines.append(f"| {name} | {f['peak'] / 2**30:.2f} | {f['workspace'] / 2**30:.2f} | {f['seconds']:.1f} | {f['norm']:.4f} |")
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
