#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory and step time of llama-60m beside plain PyTorch, as ratios measured in one run.

Ours and Hugging Face's LlamaForCausalLM (eager, torch.compile, gradient checkpointing) train in
turn, in fresh processes with the same threads, batch and precision of products; every round runs
each once, and times are the medians over rounds. Bytes are exact: both sides count them with an
allocator. The floor is the step's matrix products alone.

    python bench/step.py --python .venv/bin/python
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measuring  # noqa: E402 - after the path
import memory_table as table  # noqa: E402 - the runs themselves are the memory table's

COMPACT_8 = ["--preset", "compact", "--rank", "0.125"]
# type, batch -> rows of (name, side, flags)
GROUPS = {
    ("bf16", 16): [
        ("eager", "hf", []), ("torch.compile", "hf", ["--mode", "compile"]),
        ("checkpointing", "hf", ["--mode", "checkpoint"]),
        ("off", "ours", ["--preset", "off"]), ("exact", "ours", ["--preset", "exact"]),
        ("every block recomputed", "ours", ["--preset", "recompute"]),
        *[(f"auto {part}%", "ours", ["--preset", "auto", "--budget", f"{part}%"]) for part in (45, 40, 35, 30)],
        ("gact-l1", "ours", ["--preset", "gact-l1"]),
        ("compact n/8", "ours", COMPACT_8)],
    ("f32", 16): [
        ("eager", "hf", ["--matmul", "onednn"]), ("eager, default products", "hf", []),
        ("torch.compile", "hf", ["--matmul", "onednn", "--mode", "compile"]),
        ("checkpointing", "hf", ["--matmul", "onednn", "--mode", "checkpoint"]),
        ("off", "ours", ["--preset", "off"]), ("exact", "ours", ["--preset", "exact"]),
        ("every block recomputed", "ours", ["--preset", "recompute"]),
        ("compact n/8", "ours", COMPACT_8)],
    ("f32", 64): [("eager", "hf", ["--matmul", "onednn"]), ("exact", "ours", ["--preset", "exact"])],
}


def floor(a, dtype, batch):
    """Seconds of the step's products: forward, both gradients, all layers and the head."""
    command = [a.python, str(ROOT / "bench/rivals/products.py"), "--model", "llama-60m", "--dtype", dtype, "--batch", str(batch)]
    command += ["--threads", str(a.threads), "--matmul", "onednn" if dtype == "f32" else "default"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(found.splitlines()[-1])["step_seconds"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--python", default=sys.executable, help="a Python with torch and transformers")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=6, help="steps of a run, the first two not timed")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--groups", nargs="+", default=["bf16x16", "f32x16", "f32x64"])
    p.add_argument("--limit", type=float, default=300, help="seconds a run may take")
    p.add_argument("--out", default=str(ROOT / "bench/results/step"), help="PATH of PATH.md and PATH.json")
    a = p.parse_args()
    found = {}
    lines = ["# Step of llama-60m beside plain PyTorch", "",
             f"{datetime.date.today()}, {measuring.device_name('cpu')}, {a.threads} threads, "
             f"{a.rounds} rounds; `bench/step.py`. Peak: highest allocated bytes of a step, weights, gradients "
             "and optimizer state included. Ratios are to the rival of the same group.", ""]
    for (dtype, batch), rows in GROUPS.items():
        if f"{dtype}x{batch}" not in a.groups:
            continue
        base = floor(a, dtype, batch)
        seconds, peaks = {}, {}
        for r in range(a.rounds if batch == 16 else 1):
            for name, side, flags in rows:
                if "--budget" in flags:  # a part of what off takes
                    part = float(flags[-1].rstrip("%")) / 100
                    flags = [*flags[:-1], f"{int(part * peaks['off'])}B"]
                options = types.SimpleNamespace(
                    **{**vars(a), "dtype": dtype, "batch": batch, "block": 256, "device": "cpu",
                       "matmul": "default", "allocator": None})
                with tempfile.TemporaryDirectory() as folder:
                    folder = pathlib.Path(folder)
                    command = (table.rival(options, "llama-60m", flags) if side == "hf"
                               else table.ours(options, "llama-60m", flags, folder))
                    code, out, errors = table.run(command, a.limit)
                    if code != 0:
                        print(f"{name}: failed ({code}) {errors[-400:]}", flush=True)
                        continue
                    values = (json.loads(out.strip().splitlines()[-1]) if side == "hf"
                              else json.loads((folder / "run/all_results.json").read_text()))
                peaks[name] = values["peak_bytes" if side == "hf" else "memory/peak_bytes"]
                seconds.setdefault(name, []).append(batch * 256 / values["tokens_per_second"])
                print(f"{dtype} {batch} round {r} {name}: {peaks[name] / 2**20:.0f} MiB, "
                      f"{seconds[name][-1]:.2f} s", flush=True)
        lines += [f"## {dtype}, {batch} x 256 tokens; floor (matrix products alone) {base:.2f} s", "",
                  "| | peak MiB | beside eager | beside torch.compile | step s | beside eager | "
                  "beside torch.compile | beside the floor |", "|---|---|---|---|---|---|---|---|"]
        ratio = lambda x, y: f"{x / y:.3f}" if x and y else ""
        for name, _, _ in rows:
            if name not in peaks:
                continue
            s = statistics.median(seconds[name])
            of = lambda d, k: (statistics.median(d[k]) if isinstance(d.get(k), list) else d.get(k)) if k in d else None
            lines.append(f"| {name} | {peaks[name] / 2**20:.0f} | {ratio(peaks[name], of(peaks, 'eager'))} | "
                         f"{ratio(peaks[name], of(peaks, 'torch.compile'))} | {s:.2f} | "
                         f"{ratio(s, of(seconds, 'eager'))} | {ratio(s, of(seconds, 'torch.compile'))} | "
                         f"{ratio(s, base)} |")
        lines.append("")
        found[f"{dtype}x{batch}"] = {"floor_seconds": base, "peak_bytes": peaks, "step_seconds": seconds}
        pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(a.out + ".md").write_text("\n".join(lines))
        pathlib.Path(a.out + ".json").write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
