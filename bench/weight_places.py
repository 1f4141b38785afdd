#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of a LLaMA whose weights, moments or both are in memory and in files, with room for all and with less.

Each row is a run of the program with AdamW in float32, a batch of one block, gradients freed inside the backward pass. With `--limit`
(as root, where the system has memory cgroups of version 1) every row runs again where no more memory than that is to be had, code and pages
of files included. All rows that end must write the same weights.

    python bench/weight_places.py --limit 1 --folder DISK --out bench/results/weight-places.md
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import tempfile

import measuring
from state_places import cgroup

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = {"in memory": [], "`moment * = f32+disk`": ["moment * = f32+disk"], "`weight * = disk`": ["weight * = disk"], "both": ["moment * = f32+disk", "weight * = disk"]}


def run(a, lines, limit):
    """all_results.json and a digest of the weights; None: the run was refused or killed."""
    with tempfile.TemporaryDirectory(dir=a.folder) as folder, cgroup(limit) as enter:
        command = [a.program, "train", f"--model={a.model}", f"--train_file={ROOT}/examples/data/hard-times.txt", f"--max_steps={a.steps}", "--max_eval_samples=1",
                   "--preset=exact", "--block_size=256", "--per_device_train_batch_size=1", "--max_grad_norm=0", f"--output_dir={folder}/run",
                   *(f"--set={line}" for line in ["grad * = full:release=true", *lines])]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
        print(limit, lines, done.returncode, done.stdout[-300:], done.stderr[-300:], flush=True)
        if done.returncode:
            return None
        weights = pathlib.Path(folder, "run/model.safetensors").read_bytes()
        return json.loads(pathlib.Path(folder, "run/all_results.json").read_text()) | {"digest": hashlib.sha256(weights).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/compact")
    parser.add_argument("--model", default="llama-350m")
    parser.add_argument("--limit", type=float, help="GiB of memory")
    parser.add_argument("--folder", default=".", help="on a disk")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    lines = measuring.origin_lines("Weights and state in files", measuring.origin("cpu"))
    lines += ["", f"{a.model}, float32, 256 tokens a step, AdamW; seconds of a step after the first, medians of {a.steps} steps; bytes in MiB, `peak` that of tensors in memory, planned and measured."]
    digests = set()
    for limit in (None, a.limit) if a.limit else (None,):
        lines += ["", f"## {'With room for all' if limit is None else f'With {limit:g} GiB of memory in all'}", "", "| weights and moments | seconds | peak | in files |", "|---|---|---|---|"]
        for name, sets in ROWS.items():
            found = run(a, sets, limit)
            if not found:
                lines.append(f"| {name} | refused | | |")
                continue
            digests.add(found["digest"])
            assert found["memory/peak_bytes"] == found["memory/planned_peak_bytes"]
            outside = sum(found.get(f"memory/{what}_outside_bytes", 0) for what in ("weights", "optimizer"))
            lines.append(f"| {name} | {found['step_seconds']:.1f} | {found['memory/peak_bytes'] / 2**20:,.0f} | {outside / 2**20:,.0f} |")
    assert len(digests) == 1, "the weights of rows differ"
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
