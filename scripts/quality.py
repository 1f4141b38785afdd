#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the quality study of scripts/quality.sh and writes its table. Standard library only."""
import argparse
import concurrent.futures
import datetime
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT / "../shared/data"))

# name: flags, and what the peak learning rate of the block matrices is multiplied with, so that
# `rate` means the same effective step for all (the paper's preset scales its update by 1/4).
METHODS = {
    "off adamw": (["--preset", "off"], 1),
    "off muon": (["--preset", "off", "--optim", "muon"], 1),
    "compact-paper n/4": (["--preset", "compact-paper"], 4),
    "compact adamw n/4": (["--preset", "compact", "--update_proj_gap", "50"], 1),
    "compact muon n/4": (["--preset", "compact", "--optim", "muon", "--update_proj_gap", "50"], 1),
    "compact muon n/8": (["--preset", "compact", "--optim", "muon", "--update_proj_gap", "50",
                          "--rank", "0.125"], 1),
}
SETTINGS = {
    "cpu": {
        "flags": ["--model", "llama-mini", "--tokenizer", "bytes", "--block_size", "128",
                  "--per_device_train_batch_size", "16", "--device", "cpu",
                  "--dtype", "bfloat16", "--master_weights"],
        "steps": 1200, "rates": [1e-3, 2e-3, 4e-3], "other_rate": 2e-3, "eval_blocks": 512,
    },
    "gpu": {
        "flags": ["--model", "llama-60m", "--tokenizer",
                  f"sentencepiece:file={DATA / 'tokenizers/t5-spiece.model'}", "--block_size", "256",
                  "--per_device_train_batch_size", "128", "--dtype", "bfloat16", "--device", "cuda"],
        "steps": 2000, "rates": [1e-3, 2e-3, 4e-3], "other_rate": 2e-3, "eval_blocks": 512,
    },
}
# Books that no run trains on.
HELD_OUT = ["ABronte_Agnes.txt", "CBronte_Professor.txt", "Sterne_Sentimental.txt"]
FIRST_SEED, MORE_SEEDS = 0, [1, 2]


def novels(cache):
    """Unpacks the novels; returns (training files, held-out files)."""
    archive = DATA / "text/british-fiction.tar.xz"
    if not archive.exists():
        sys.exit(f"{archive}: not found; set COMPACT_DATA to a folder that has text/british-fiction.tar.xz")
    folder = cache / "british-fiction"
    if not folder.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(cache, filter="data")
    files = sorted(folder.glob("*.txt"))
    held = [f for f in files if f.name in HELD_OUT]
    return [f for f in files if f not in held], held


def name_of(method, rate, seed):
    return f"{method.replace(' ', '_').replace('/', '')}-{rate:g}-s{seed}"


def known_rows(folder, results):
    """Rows of earlier parts of the study: of this folder, and of the committed results."""
    if results.exists():
        for row in json.loads(results.read_text())["rows"]:
            file = folder / f"{name_of(row['method'], row['rate'], row['seed'])}.json"
            if not file.exists():
                file.write_text(json.dumps(row))
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def run(program, threads, setting, method, rate, seed, folder, files, held, cache):
    """One training run, or its stored result."""
    name = name_of(method, rate, seed)
    result = folder / f"{name}.json"
    if result.exists():
        return json.loads(result.read_text())
    flags, factor = METHODS[method]
    out = folder / "runs" / name
    steps = setting["steps"]
    command = [program, "train", *setting["flags"], *flags,
               "--train_file", *map(str, files), "--validation_file", *map(str, held),
               "--max_steps", str(steps), "--warmup_steps", "0.1", "--min_lr_ratio", "0.1",
               "--learning_rate", str(setting["other_rate"]),
               "--projected_learning_rate", str(rate * factor),
               "--max_eval_samples", str(setting["eval_blocks"]), "--logging_steps", "50",
               "--seed", str(seed), "--cache_dir", str(cache), "--output_dir", str(out),
               "--overwrite_output_dir", "--threads", str(threads)]
    started = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        if done.returncode == 3:  # diverged: a result, too
            values = {"eval_loss": math.inf}
        else:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\nfailed with {done.returncode}")
    else:
        values = json.loads((out / "all_results.json").read_text())
    row = {"method": method, "rate": rate, "seed": seed, "seconds": time.time() - started,
           **{k: values.get(k) for k in ("eval_loss", "train_loss", "step_seconds", "memory/peak_bytes",
                                         "memory/optimizer_bytes", "memory/saved_bytes")}}
    shutil.rmtree(out, ignore_errors=True)
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(row))
    temporary.replace(result)
    print(f"{name}: eval_loss {row['eval_loss']:.4f} in {row['seconds']:.0f} s", flush=True)
    return row


def t_quantile(degrees):
    """Two-sided 95 %."""
    return {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}.get(degrees, 1.96)


def report(rows, setting_name, setting, path):
    """The table, as JSON and Markdown."""
    best = {}
    for m in METHODS:
        first = [r for r in rows if r["method"] == m and r["seed"] == FIRST_SEED]
        if first:
            best[m] = min(first, key=lambda r: r["eval_loss"])["rate"]
    base = "off adamw"
    lines = [f"# Quality study ({setting_name})", "",
             f"{datetime.date.today()}, {platform.processor() or platform.machine()}, "
             f"{os.cpu_count()} cores; `scripts/quality.sh --setting {setting_name}`; "
             f"{setting['steps']} steps, flags `{' '.join(setting['flags'])}`, other parameters at "
             f"learning rate {setting['other_rate']:g}. Loss in nats a token on unseen books; difference "
             f"to `{base}` at its own best rate, paired by seed, with its 95 % interval.", "",
             "| method | " + " | ".join(f"rate {r:g}" for r in setting["rates"]) +
             " | best over seeds | difference | seeds |", "|---|" + "---|" * (len(setting["rates"]) + 3)]
    at_best = {m: {r["seed"]: r["eval_loss"] for r in rows if r["method"] == m and r["rate"] == best[m]}
               for m in best}
    for m in best:
        first = {r["rate"]: r["eval_loss"] for r in rows if r["method"] == m and r["seed"] == FIRST_SEED}
        losses = at_best[m]
        pairs = [losses[s] - at_best[base][s] for s in losses if s in at_best.get(base, {})]
        mean = sum(pairs) / len(pairs) if pairs else math.nan
        if m == base:
            difference = "0"
        elif len(pairs) > 1:
            variance = sum((p - mean) ** 2 for p in pairs) / (len(pairs) - 1)
            half = t_quantile(len(pairs) - 1) * math.sqrt(variance / len(pairs))
            difference = f"{mean:+.4f} ± {half:.4f}"
        else:
            difference = f"{mean:+.4f}"
        whole = len(first) == len(setting["rates"])
        lines.append(f"| {m}{'' if whole else ' (not finished)'} | " + " | ".join(f"{first[r]:.4f}" if r in first else "" for r in setting["rates"]) +
                     f" | {sum(losses.values()) / len(losses):.4f} | {difference} | {len(losses)} |")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    path.with_suffix(".json").write_text(json.dumps({"setting": setting_name, "rows": rows}, indent=1) + "\n")
    print("\n".join(lines))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--setting", choices=SETTINGS, default="cpu")
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--jobs", type=int, default=1 if "gpu" in sys.argv else os.cpu_count(),
                   help="runs at a time; default: as many as cores, 1 on a GPU")
    p.add_argument("--hours", type=float, default=1e9,
                   help="start no run after this time; 0: only the report of what is there")
    p.add_argument("--output", type=pathlib.Path, default=None, help="where results of runs are kept")
    a = p.parse_args()
    setting = SETTINGS[a.setting]
    folder = a.output or ROOT / "runs" / f"quality-{a.setting}"
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    files, held = novels(cache)
    deadline = time.time() + a.hours * 3600
    results = ROOT / "bench/results" / f"quality-{a.setting}.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    rows = known_rows(folder, results)

    def go(wanted):
        """Runs (method, rate, seed) rows, `jobs` at a time, each on its share of the cores."""
        def one(method, rate, seed):
            done = any((r["method"], r["rate"], r["seed"]) == (method, rate, seed) for r in rows)
            if time.time() < deadline and not done:
                rows.append(run(a.program, threads, setting, method, rate, seed, folder, files, held, cache))
        threads = max(1, os.cpu_count() // a.jobs)
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            for done in [pool.submit(one, *w) for w in wanted]:
                done.result()

    # Middle rates first, so that a stopped study already compares all methods.
    middle = len(setting["rates"]) // 2
    rates = sorted(setting["rates"], key=lambda r: abs(setting["rates"].index(r) - middle))
    go([(method, rate, FIRST_SEED) for rate in rates for method in METHODS])
    best = {}
    for method in METHODS:
        first = [r for r in rows if r["method"] == method and r["seed"] == FIRST_SEED]
        if len(first) == len(rates):
            best[method] = min(first, key=lambda r: r["eval_loss"])["rate"]
    go([(method, rate, seed) for seed in MORE_SEEDS for method, rate in best.items()])
    rows.sort(key=lambda r: (list(METHODS).index(r["method"]), r["seed"], r["rate"]))
    report(rows, a.setting, setting, results)


if __name__ == "__main__":
    main()
