#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tells what fits on which GPU: plans of fine-tuning steps, whole, by LoRA and by QLoRA, of known models on cards of 8 to 80 GB.

A step is one sequence, in bfloat16, with its predicted time; for each cell the first of LEVELS is taken with which it fits. Nothing is trained.

    python bench/answers.py [--program build/compact] --out bench/results/answers.md
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import measuring

MODELS = ("llama-3.1-8b", "qwen3-8b", "gemma-3-12b", "qwen3-32b")
WAYS = {
    "whole": ["--max_grad_norm", "0"],
    "LoRA": ["--use_peft", "true"],
    "QLoRA": ["--use_peft", "true", "--load_in_4bit", "true", "--use_bnb_nested_quant", "true"],
}
LENGTHS = (2048, 8192, 32768)
CARDS = ("h100", "6000-ada", "4090", "4080", "4070", "4060")  # the largest first
LEVELS = {"lossless": "", "offload": " (o)", "quantize,offload": " (o, q)", "project,quantize,offload": " (o, q, p)"}
COMMON = ["--dtype", "bfloat16", "--device", "cuda", "--preset", "auto", "--per_device_train_batch_size", "1"]


def plan(program, card, flags, level):
    """(the figures, None) or (None, the least bytes of such a step)"""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "plan.json"
        command = [program, "plan", *COMMON, *flags, "--gpu", card, "--allow", level, "--json", out]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(out.read_text()), None
    least = re.search(r"least peak of what is allowed is [^(]*\(([\d,]+) B\)", done.stderr)
    if done.returncode != 4 or not least:
        raise SystemExit(f"{measuring.shown(command)}: {done.stderr.strip()}")
    return None, int(least[1].replace(",", ""))


def row(program, usable, flags):
    """A cell for each card."""
    least, cells = dict.fromkeys(LEVELS, 0), {}
    for card in CARDS:
        cells[card] = "–"
        for level, mark in LEVELS.items():
            if least[level] > usable[card] or ("project" in level and "--use_peft" in flags):  # adapters have no gradients to project
                continue
            figures, bytes_needed = plan(program, card, flags, level)
            if figures is None:
                least[level] = bytes_needed
                continue
            host = f"o: {figures['host_pinned_bytes'] / 2**30:.0f} GiB"
            cells[card] = f"{figures['time']['seconds']:.2g} s{mark.replace('o', host)}"
            break
    return [cells[card] for card in reversed(CARDS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(measuring.ROOT / "build/compact"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    program = measuring.program_at(a.program)
    known = {card: plan(program, card, ["--model", "llama-tiny"], "lossless")[0]["gpu"]["memory_bytes"] for card in CARDS}
    lines = measuring.origin_lines("What fits", measuring.origin("cpu"))
    lines += ["", "Seconds that a step of one sequence is predicted to take, launches and waits not counted; – : it does not fit, whatever is allowed. Without a mark nothing is lost and all"]
    lines += ["is on the GPU; (o): optimizer state, and where that is not enough weights, in so much memory of the host, which loses nothing; (q): moments or what is saved in fewer bits; (p): gradients in random projections."]
    lines += ["`whole` trains all weights in bfloat16 by AdamW, its moments in bfloat16, gradients not clipped; LoRA and QLoRA adapters of rank 16 beside every product of a block."]
    lines += ["Heads say the memory that a card's driver leaves. The first mark in this list with which a step fits is taken, and the fastest policy with it:", ""]
    lines += [f"- `{level}`: {f'marked{mark}' if mark else 'not marked'}" for level, mark in LEVELS.items()]
    lines += ["", "A cell is the plan of", "", f"    compact plan {' '.join(COMMON)} \\", "      --model MODEL --block_size TOKENS --gpu CARD --allow ... FLAGS", "", "with, as FLAGS,", ""]
    lines += [f"- {way}: `{' '.join(flags)}`" for way, flags in WAYS.items()]
    for model in a.models.split(","):
        names = [f"{card} ({measuring.gib(known[card])} GiB)" for card in reversed(CARDS)]
        lines += ["", f"## {model}", "", f"| way | tokens | {' | '.join(names)} |", "|---|---|" + "---|" * len(CARDS)]
        for way, flags in WAYS.items():
            for length in LENGTHS:
                cells = row(program, known, ["--model", model, "--block_size", str(length), *flags])
                lines.append(f"| {way} | {length:,} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
