#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The savings and costs of GACT's levels, pooled activations and `auto` in whole training steps: bytes held
from forward to backward, peak as planned and measured, and samples a second, of networks trained by
`compact train`, with the largest batch that fits a budget and its speed. Prints tables and writes
bench/results/levels.{md,json}.

  bench/levels.py [--steps N] [--budget 256MB] [--networks A,B] [--threads N]

Figures of networks that are not asked for stay as they were.

Data: $COMPACT_DATA (default ../shared/data); a network whose data are not there is passed over. Images
of 224 x 224 are random grey ones.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT / "../shared/data"))
LEVELS = ["off", "exact", "gact-l1", "gact-l2", "gact-l2.2"]
POOLED = ["pool", "pool-quant"]  # of residual networks
PART = 0.7                       # of the peak of `off`: the budget of `auto`
LARGE = ROOT / ".cache/images-224"  # made where it is not there


def images(model, file=DATA / "vision/cifar10-jpeg-train.tar.xz"):
    return ["--task", "image-classification", "--model", model, "--optim", "sgd", "--train_file", str(file)]


def make_large_images(folder, count=128, side=224):
    """An idx pair: random grey images of ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    values = random.Random(0)
    pixels = struct.pack(">IIII", 0x803, count, side, side) + values.randbytes(count * side * side)
    labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
    (folder / "train-images-idx3-ubyte").write_bytes(pixels)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)


def nodes(model):
    return ["--task", "node-classification", "--model", model, "--train_file", str(DATA / "graph/cora.npz"),
            "--per_device_train_batch_size", "1"]


# name -> flags, batch (0: not a choice), unit
NETWORKS = {
    "resnet18": (images("resnet18", LARGE / "train-images-idx3-ubyte"), 32, "images"),
    "resnet50": (images("resnet50", LARGE / "train-images-idx3-ubyte"), 16, "images"),
    "resnet20": (images("resnet20"), 128, "images"),
    "resnet56": (images("resnet56"), 128, "images"),
    "gcn": (nodes("gcn"), 0, "nodes"),
    "gat": (nodes("gat"), 0, "nodes"),
    "llama-mini": (["--model", "llama-mini", "--train_file", str(DATA / "text/tinyshakespeare.txt"),
                    "--tokenizer", "bytes", "--block_size", "128"], 16, "tokens"),
}


def compact(program, command, *flags):
    done = subprocess.run([program, command, *flags], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {command} {' '.join(flags)}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(program, flags, preset, batch, steps, threads):
    with tempfile.TemporaryDirectory() as folder:
        compact(program, "train", *flags, *(["--per_device_train_batch_size", str(batch)] if batch else []),
                "--preset", preset, "--max_steps", str(steps), "--threads", str(threads),
                "--max_eval_samples", "8", "--max_grad_norm", "0", "--device", "cpu",
                "--output_dir", f"{folder}/run")
        return json.loads(pathlib.Path(folder, "run/all_results.json").read_text())


def max_batch(program, flags, preset, budget, threads):
    text = compact(program, "plan", *flags, "--preset", preset, "--budget", budget, "--max_batch",
                   "--max_grad_norm", "0", "--device", "cpu", "--threads", str(threads))
    return int(re.search(r"max batch ([\d,]+)", text)[1].replace(",", ""))


def measure(a, name):
    flags, batch, unit = NETWORKS[name]
    if not pathlib.Path(flags[flags.index("--train_file") + 1]).exists():
        print(f"{name}: passed over, its data are not there")
        return []
    rows = []
    for preset in LEVELS + ([*POOLED, "auto"] if name.startswith("resnet") else []):
        budget = ["--budget", f"{int(PART * rows[0]['peak_bytes'])}B"] if preset == "auto" else []
        results = train(a.program, [*flags, *budget], preset, batch, a.steps, a.threads)
        row = {"network": name, "preset": preset, "batch": batch or 1, "unit": unit, "threads": a.threads,
               "saved_bytes": results["memory/saved_bytes"], "held_bytes": results["memory/held_bytes"],
               "peak_bytes": results["memory/peak_bytes"],
               "planned_peak_bytes": results["memory/planned_peak_bytes"],
               "per_second": results[f"{unit}_per_second"]}
        if batch and not flags[-1].startswith(str(LARGE)):
            row["max_batch"] = max_batch(a.program, flags, preset, a.budget, a.threads)
            most = train(a.program, [*flags, "--budget", a.budget], preset, row["max_batch"], 4, a.threads)
            row["max_batch_peak_bytes"] = most["memory/peak_bytes"]
            row["max_batch_per_second"] = most[f"{unit}_per_second"]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def report(a, rows):
    lines = ["# GACT's levels and pooled activations in training steps", "",
             f"{datetime.date.today()}, {platform.processor() or platform.machine()}; "
             f"`bench/levels.py --steps {a.steps} --budget {a.budget}`. f32. held: allocated by the forward "
             "pass and living at its end; peak: the highest moment of a step, weights included, and beside it "
             "what was planned. Ratios: `off` over the level, of speed the level over `off`. `auto`: the "
             f"cheapest lossless policy under {PART:.0%} of the peak of `off`. Largest batch: by plan under the "
             "budget, then run.", "",
             "| network | threads | preset | held MiB | smaller | peak MiB | smaller | planned | per second | speed | "
             f"largest batch in {a.budget} | larger | its peak MiB | per second |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        off = next(r for r in rows if r["network"] == row["network"] and r["preset"] == "off")
        line = (f"| {row['network']} x {row['batch']} | {row['threads']} | {row['preset']} | {row['held_bytes'] / 2**20:.1f} | "
                f"{off['held_bytes'] / row['held_bytes']:.2f} | {row['peak_bytes'] / 2**20:.1f} | "
                f"{off['peak_bytes'] / row['peak_bytes']:.2f} | "
                f"{row['planned_peak_bytes'] / row['peak_bytes'] - 1:+.2%} | {row['per_second']:,.{0 if row['per_second'] > 100 else 1}f} {row['unit']} | "
                f"{row['per_second'] / off['per_second']:.2f} | ")
        if "max_batch" in row:
            line += (f"{row['max_batch']} | {row['max_batch'] / off['max_batch']:.2f} | "
                     f"{row['max_batch_peak_bytes'] / 2**20:.1f} | {row['max_batch_per_second']:,.0f} |")
        else:
            line += "| | | |"
        lines.append(line)
    path = ROOT / "bench/results/levels.md"
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(lines))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--budget", default="256MB")
    p.add_argument("--networks", default=",".join(NETWORKS))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    a = p.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    unknown = set(a.networks.split(",")) - set(NETWORKS)
    if unknown:
        p.error(f"no network {', '.join(sorted(unknown))}; known: {', '.join(NETWORKS)}")
    stored = ROOT / "bench/results/levels.json"
    rows = json.loads(stored.read_text()) if stored.exists() else []
    if not LARGE.exists():
        make_large_images(LARGE)
    for name in a.networks.split(","):
        fresh = measure(a, name)
        rows = [r for r in rows if r["network"] != name or not fresh] + fresh
    rows.sort(key=lambda r: list(NETWORKS).index(r["network"]))
    report(a, rows)


if __name__ == "__main__":
    main()
