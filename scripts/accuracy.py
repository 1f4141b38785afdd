#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the accuracy study of scripts/accuracy.sh and writes its table. Standard library only."""
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT / "../shared/data"))

LEVELS = ["off", "gact-l1", "gact-l2", "gact-l1.2", "gact-l2.2"]
CIFAR = DATA / "vision/cifar10-jpeg-train.tar.xz"
CORA = DATA / "graph/cora.npz"
TEXT = DATA / "text/tinyshakespeare.txt"


def image_flags(epochs, width):
    return ["--task", "image-classification", "--model", "resnet20", "--width_mult", str(width),
            "--train_file", str(CIFAR), "--validation_split", "0.1",
            "--per_device_train_batch_size", "128", "--per_device_eval_batch_size", "250",
            "--num_train_epochs", str(epochs), "--optim", "sgd", "--learning_rate", "0.2",
            "--weight_decay", "5e-4", "--warmup_steps", "0.3", "--max_grad_norm", "0",
            "--logging_steps", "100"]


def graph_flags(model, rate, decay, steps):
    return ["--task", "node-classification", "--model", model, "--train_file", str(CORA),
            "--per_device_train_batch_size", "1", "--learning_rate", str(rate),
            "--optim", "adam", "--weight_decay", str(decay), "--max_steps", str(steps), "--max_grad_norm", "0",
            "--lr_scheduler_type", "constant", "--logging_steps", "100", "--bits_interval", "100"]


def text_flags(model, steps, batch):
    return ["--model", model, "--train_file", str(TEXT), "--block_size", "128",
            "--per_device_train_batch_size", str(batch), "--max_steps", str(steps),
            "--learning_rate", "2e-3", "--warmup_steps", "0.1", "--min_lr_ratio", "0.1",
            "--validation_split", "0.1", "--logging_steps", "100", "--bits_interval", "200"]


# name -> flags, the file that must be there, the figure that is compared, seeds, higher is better
SETTINGS = {
    "cpu": {
        "resnet20, half width, CIFAR-10, 10 epochs":
            (image_flags(10, 0.5), CIFAR, "eval_accuracy", 2),
        "GCN, Cora": (graph_flags("gcn", 0.01, 5e-4, 200), CORA, "test_accuracy", 10),
        "GAT, Cora": (graph_flags("gat", 0.005, 5e-4, 200), CORA, "test_accuracy", 10),
        "llama-mini": (text_flags("llama-mini", 200, 16), TEXT, "eval_loss", 3),
    },
    "gpu": {
        "resnet20, CIFAR-10, 200 epochs":
            (image_flags(200, 1), CIFAR, "eval_accuracy", 3),
        "GCN, Cora": (graph_flags("gcn", 0.01, 5e-4, 200), CORA, "test_accuracy", 10),
        "GAT, Cora": (graph_flags("gat", 0.005, 5e-4, 200), CORA, "test_accuracy", 10),
        "llama-60m": (text_flags("llama-60m", 2000, 128), TEXT, "eval_loss", 3),
    },
}
KEPT = ("eval_accuracy", "test_accuracy", "eval_loss", "train_loss", "step_seconds",
        "memory/peak_bytes", "memory/saved_bytes")


def name_of(study, preset, seed):
    return "-".join("".join(c if c.isalnum() else "_" for c in part)
                    for part in (study, preset, f"s{seed}"))


def run(program, threads, study, flags, preset, seed, folder):
    """One training run, or its stored result."""
    name = name_of(study, preset, seed)
    result = folder / f"{name}.json"
    if result.exists():
        return json.loads(result.read_text())
    out = folder / "runs" / name
    command = [program, "train", *flags, "--preset", preset, "--seed", str(seed),
               "--max_eval_samples", "0", "--cache_dir", str(folder / "cache"),
               "--output_dir", str(out), "--overwrite_output_dir", "--threads", str(threads)]
    started = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\nfailed with {done.returncode}")
    values = json.loads((out / "all_results.json").read_text())
    row = {"study": study, "preset": preset, "seed": seed, "seconds": time.time() - started,
           **{k: values.get(k) for k in KEPT}}
    shutil.rmtree(out, ignore_errors=True)
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(row))
    temporary.replace(result)
    print(f"{name}: {row['eval_loss']:.4f} {row['eval_accuracy']} in {row['seconds']:.0f} s", flush=True)
    return row


def t_quantile(degrees):
    """Two-sided 95 %."""
    table = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
    return table[degrees - 1] if degrees <= len(table) else 1.96


def difference(values, base, unit):
    """Mean paired difference with its 95 % interval."""
    pairs = [values[s] - base[s] for s in values if s in base]
    if not pairs:
        return ""
    mean = sum(pairs) / len(pairs)
    if len(pairs) < 2:
        return f"{mean * unit:+.3f}"
    variance = sum((p - mean) ** 2 for p in pairs) / (len(pairs) - 1)
    half = t_quantile(len(pairs) - 1) * math.sqrt(variance / len(pairs))
    return f"{mean * unit:+.3f} ± {half * unit:.3f}"


def report(rows, setting_name, path):
    """The table, as JSON and Markdown."""
    lines = [f"# Accuracy study ({setting_name})", "",
             f"{datetime.date.today()}, {platform.processor() or platform.machine()}, "
             f"{os.cpu_count()} cores; `scripts/accuracy.sh --setting {setting_name}`. Accuracy in "
             "percent, loss in nats a token, both of data that no run trained on; differences to `off` "
             "paired by seed, with their 95 % intervals. Bytes: what is kept from forward to backward.", ""]
    for study, (flags, _, figure, _) in SETTINGS[setting_name].items():
        mine = [r for r in rows if r["study"] == study]
        if not mine:
            continue
        unit = 100 if figure.endswith("accuracy") else 1
        lines += [f"## {study}", "", f"`{' '.join(shown(flags))}`", "",
                  f"| preset | {figure} | difference | seeds | saved MiB | step ms |",
                  "|---|---|---|---|---|---|"]
        at = {p: {r["seed"]: r[figure] for r in mine if r["preset"] == p} for p in LEVELS}
        for preset in LEVELS:
            of = [r for r in mine if r["preset"] == preset]
            if not of:
                continue
            mean = sum(at[preset].values()) / len(of) * unit
            lines.append(
                f"| {preset} | {mean:.3f} | {'' if preset == 'off' else difference(at[preset], at['off'], unit)}"
                f" | {len(of)} | {of[0]['memory/saved_bytes'] / 2**20:.2f} | "
                f"{sorted(r['step_seconds'] for r in of)[len(of) // 2] * 1e3:.0f} |")
        lines.append("")
    path.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")
    path.with_suffix(".json").write_text(json.dumps({"setting": setting_name, "rows": rows}, indent=1) + "\n")
    print("\n".join(lines))


def order(seeds):
    """Seeds one after another; what only shows how far equal bits go comes last."""
    later = "gact-l1.2"
    return [(p, s) for s in range(seeds) for p in LEVELS if p != later] + [(later, s) for s in range(seeds)]


def shown(flags):
    """Without the paths of this machine."""
    return [pathlib.Path(f).name if f.startswith("/") else f for f in flags]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--setting", choices=SETTINGS, default="cpu")
    p.add_argument("--studies", help="parts of names, joined by commas; default: all")
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    cores = len(os.sched_getaffinity(0))
    p.add_argument("--jobs", type=int, default=1 if "gpu" in sys.argv else cores,
                   help="runs at a time; default: as many as cores, 1 on a GPU")
    p.add_argument("--hours", type=float, default=1e9,
                   help="start no run after this time; 0: only the report of what is there")
    p.add_argument("--output", type=pathlib.Path, default=None, help="where results of runs are kept")
    a = p.parse_args()
    folder = a.output or ROOT / "runs" / f"accuracy-{a.setting}"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + a.hours * 3600
    results = ROOT / "bench/results" / f"accuracy-{a.setting}.json"
    if results.exists():  # of earlier parts of the study
        for row in json.loads(results.read_text())["rows"]:
            file = folder / f"{name_of(row['study'], row['preset'], row['seed'])}.json"
            if not file.exists():
                file.write_text(json.dumps(row))
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    threads = max(1, cores // a.jobs)
    wanted = []
    for study, (flags, file, _, seeds) in SETTINGS[a.setting].items():
        if a.studies and not any(part in study for part in a.studies.split(",")):
            continue
        if not file.exists():
            print(f"{study}: passed over, {file} is not there")
            continue
        wanted += [(study, flags, preset, seed) for preset, seed in order(seeds)]

    def one(study, flags, preset, seed):
        done = any((r["study"], r["preset"], r["seed"]) == (study, preset, seed) for r in rows)
        if time.time() < deadline and not done:
            rows.append(run(a.program, threads, study, flags, preset, seed, folder))

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for done in [pool.submit(one, *w) for w in wanted]:
            done.result()
    studies = list(SETTINGS[a.setting])
    rows = [r for r in rows if r["study"] in studies]
    rows.sort(key=lambda r: (studies.index(r["study"]), LEVELS.index(r["preset"]), r["seed"]))
    report(rows, a.setting, results)


if __name__ == "__main__":
    main()
