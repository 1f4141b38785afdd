#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The memory of the process of a training run beside its tensors, where texts have many lengths.

bert-tiny on 16 texts a step: all of one length; of lengths drawn log-normally; the same with the
caches of compiled products as long as their libraries make them. The floor is the program alone,
and the counted peak of tensors.

    resident.py [--program build/compact] [--steps 100] [--out bench/results/resident.md]

Needs $COMPACT_DATA/tokenizers/bert-uncased-vocab.txt.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT.parent / "shared/data"))
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
LONGEST = 480  # words, which are fewer than 512 tokens


def texts(path, lengths):
    words = (ROOT / "examples/data/hard-times.txt").read_text().replace('"', "").split()
    draw = random.Random(1)
    with open(path, "w", encoding="utf-8") as out:
        out.write("text\tlabel\n")
        for i in range(1600):
            length = min(LONGEST, max(3, round(lengths(draw))))
            begin = draw.randrange(len(words) - length)
            out.write(" ".join(words[begin : begin + length]) + f"\t{i % 2}\n")


def train(program, file, steps, folder, caches=None):
    environment = {k: v for k, v in os.environ.items() if k not in CACHES}
    if caches:
        environment |= {name: str(caches) for name in CACHES}
    done = subprocess.run(
        [program, "train", "--task", "text-classification", "--train_file", file, "--model", "bert-tiny",
         "--tokenizer", f"wordpiece:file={DATA / 'tokenizers/bert-uncased-vocab.txt'}",
         "--max_seq_length", "512", "--per_device_train_batch_size", "16", "--max_steps", str(steps),
         "--threads", "1", "--device", "cpu", "--output_dir", folder, "--overwrite_output_dir", "true"],
        env=environment, capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads((folder / "all_results.json").read_text())


def alone(program):
    """The bytes that the program takes to say its version."""
    subprocess.run([program, "--version"], capture_output=True, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/compact")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    lines = [f"The program alone: {alone(args.program) / 2**20:.0f} MiB.", "",
             "| texts | tensors at the peak, MiB | process at the most, MiB | step s |",
             "|---|---|---|---|"]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts(folder / "one.tsv", lambda draw: LONGEST)
        texts(folder / "many.tsv", lambda draw: draw.lognormvariate(4.6, 0.8))
        for what, file, caches in (
            ("of one length", "one.tsv", None),
            ("of many lengths", "many.tsv", None),
            ("of many lengths, caches of 1,024", "many.tsv", 1024),
        ):
            r = train(args.program, folder / file, args.steps, folder / "run", caches)
            lines.append(f"| {what} | {r['memory/peak_bytes'] / 2**20:.0f} "
                         f"| {r['memory/resident_bytes'] / 2**20:.0f} | {r['step_seconds']:.3f} |")  # fmt: skip
            print(lines[-1], flush=True)
    head = ["# What a process takes beside its tensors", "",
            f"`bench/resident.py --steps {args.steps}`, {datetime.date.today()}, one thread of "
            f"{os.cpu_count()} on {platform.machine()}: bert-tiny in float32, 16 texts a step, preset `exact`.", ""]  # fmt: skip
    text = "\n".join(head + lines) + "\n"
    print("\n" + text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
