#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training under byte budgets: `auto` at parts of the peak of `off`, beside `off`, `exact` and block
recomputation. Every run is a fresh process; rounds take turns; times are medians over rounds.

    python bench/budget.py [--program build/compact] [--models llama-60m llama-mini]
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measuring  # noqa: E402 - after the path
import memory_table as table  # noqa: E402

PARTS = [0.9, 0.75, 0.6, 0.5, 0.4]
BATCH = {"llama-60m": (16, 256), "llama-mini": (16, 128)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--models", nargs="+", default=list(BATCH), choices=BATCH)
    p.add_argument("--dtype", choices=table.TYPES, default="bf16")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--out", default=str(ROOT / "bench/results/budget"), help="PATH of PATH.md and PATH.json")
    a = p.parse_args()
    lines = ["# Training under a budget", "",
             f"{datetime.date.today()}, {measuring.device_name('cpu')}, {a.threads} threads, {a.rounds} rounds; "
             f"`bench/budget.py`, {a.dtype}. The budget is a part of the peak of `off`; the peak is measured.", ""]
    found = {}
    for model in a.models:
        batch, block = BATCH[model]
        peaks, seconds, budgets = {}, {}, {}

        def run(name, flags):
            options = types.SimpleNamespace(**{**vars(a), "batch": batch, "block": block, "device": "cpu"})
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                command = table.ours(options, model, flags, folder)
                code, _, errors = table.run(command, 600)
                if code != 0:
                    peaks[name] = errors.strip()[-200:]
                    return
                values = json.loads((folder / "run/all_results.json").read_text())
            peaks[name] = values["memory/peak_bytes"]
            seconds.setdefault(name, []).append(values["step_seconds"])
            print(f"{model} {name}: {peaks[name] / 2**20:.1f} MiB, {values['step_seconds']:.3f} s", flush=True)

        for _ in range(a.rounds):
            run("off", ["--preset", "off"])
            run("exact", ["--preset", "exact"])
            run("every block recomputed", ["--preset", "recompute"])
            for part in PARTS:
                name = f"auto, {part:.0%}"
                budgets[name] = int(part * peaks["off"])
                run(name, ["--preset", "auto", "--budget", f"{budgets[name]}B"])
        lines += [f"## {model}, {batch} x {block} tokens", "",
                  "| | budget MiB | peak MiB | step s | beside off | beside recomputation |",
                  "|---|---|---|---|---|---|"]
        for name, peak in peaks.items():
            budget = f"{budgets[name] / 2**20:.1f}" if name in budgets else ""
            if isinstance(peak, str):
                lines.append(f"| {name} | {budget} | {peak} | | | |")
                continue
            assert name not in budgets or peak <= budgets[name], (name, peak, budgets[name])
            s = statistics.median(seconds[name])
            lines.append(f"| {name} | {budget} | {peak / 2**20:.1f} | {s:.3f} | "
                         f"{s / statistics.median(seconds['off']):.3f} | "
                         f"{s / statistics.median(seconds['every block recomputed']):.3f} |")
        lines.append("")
        found[model] = {"peak_bytes": peaks, "budget_bytes": budgets, "step_seconds": seconds}
    out = pathlib.Path(a.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".md").write_text("\n".join(lines))
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
