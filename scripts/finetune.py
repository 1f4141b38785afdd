#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes an encoder on GLUE under several presets, and with Hugging Face's code beside them, and
writes a table with differences paired by seed. Needs the folder of a pretrained encoder (MODEL) and
GLUE's data (COMPACT_DATA/glue). The rivals need torch, transformers and, for LoRA, peft in --python.

    scripts/finetune.py --model_folder DIR
"""
import json
import pathlib
import subprocess
import sys
import time

from study import DATA, ROOT, Study, arguments, difference

GLUE = DATA / "glue"


def projected(preset, rank, alpha):
    return ["--preset", preset, "--rank", str(rank), "--scale", str(alpha), "--update_proj_gap", "500"]


# A way of training: its flags; of rivals what bench/rivals/hf_sequence.py takes.
WAYS = {
    "off": ["--preset", "off"],
    "exact": ["--preset", "exact"],
    "compact r=8": projected("compact", 8, 2),
    "compact r=4": projected("compact", 4, 4),
    "compact-paper r=8": projected("compact-paper", 8, 2),
    "gact-l2": ["--preset", "gact-l2"],
}
# LoRA is given the larger rate that it needs.
RIVALS = {
    "transformers": [],
    "transformers, LoRA r=8": ["--lora", "8", "--learning_rate", "5e-4"],
}


class Case:
    """A task with flags that both programs take alike, and its figure."""

    def __init__(self, task, folder, figure, batch, epochs, rate, samples=0):
        self.task, self.folder, self.figure = task, GLUE / folder, figure
        self.batch, self.epochs, self.rate, self.samples = batch, epochs, rate, samples

    def flags(self, model):
        return ["--task", "glue", "--task_name", self.task, "--data_dir", str(self.folder),
                "--model_name_or_path", model, "--per_device_train_batch_size", str(self.batch),
                "--per_device_eval_batch_size", "64", "--num_train_epochs", str(self.epochs),
                "--learning_rate", str(self.rate), "--lr_scheduler_type", "linear",
                "--warmup_steps", "0.1", "--max_train_samples", str(self.samples),
                "--logging_steps", "100"]

    def rival_flags(self, model):
        return ["--task_name", self.task, "--data_dir", str(self.folder), "--model", model,
                "--batch", str(self.batch), "--epochs", str(self.epochs),
                "--learning_rate", str(self.rate), "--max_train_samples", str(self.samples)]


SETTINGS = {
    "cpu": {
        "CoLA": Case("cola", "CoLA", "eval_matthews_correlation", 32, 3, 1e-4),
        "SST-2, 10,000 sentences": Case("sst2", "SST-2", "eval_accuracy", 32, 2, 5e-5, 10000),
    },
    "gpu": {
        "CoLA": Case("cola", "CoLA", "eval_matthews_correlation", 32, 30, 2e-5),
        "SST-2": Case("sst2", "SST-2", "eval_accuracy", 16, 30, 2e-5),
    },
}
KEPT = ("eval_loss", "eval_accuracy", "eval_matthews_correlation", "step_seconds",
        "memory/peak_bytes", "memory/saved_bytes")


def run_rivals(study, a, name, case, seeds):
    """Rows of Hugging Face's code that are not there yet."""
    for seed in range(seeds):
        for way, flags in RIVALS.items():
            key = {"study": name, "preset": way, "seed": seed}
            if time.time() > study.deadline or study.has(key):
                continue
            library = ROOT / "build/bench/rivals/libcounting_allocator.so"
            command = [a.python, str(ROOT / "bench/rivals/hf_sequence.py"),
                       *case.rival_flags(a.model_folder), *flags, "--seed", str(seed),
                       "--threads", str(study.threads),
                       *(["--allocator", str(library)] if library.exists() else []),
                       *(["--device", "cuda"] if a.setting == "gpu" else [])]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 3:
                print(f"{way}: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            if done.returncode != 0:
                sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
            values = json.loads(done.stdout.splitlines()[-1])
            study.add({**key, **{k: values.get(k) for k in KEPT}})


def table(name, case, rows, ways):
    lines = [f"## {name}", "",
             f"batch {case.batch}, {case.epochs} epochs, learning rate {case.rate:g}", "",
             "| way | score | difference to off | seeds | peak MiB | step ms |", "|---|---|---|---|---|---|"]
    at = {w: {r["seed"]: r[case.figure] for r in rows if r["preset"] == w} for w in ways}
    for way in ways:
        of = [r for r in rows if r["preset"] == way]
        if not of:
            continue
        peaks = sorted(r["memory/peak_bytes"] for r in of if r["memory/peak_bytes"])
        lines.append(
            f"| {way} | {100 * sum(at[way].values()) / len(of):.2f} | "
            f"{'' if way == 'off' else difference(at[way], at['off'], 100, 2)} | {len(of)} | "
            f"{f'{peaks[-1] / 2**20:.0f}' if peaks else ''} | "
            f"{sorted(r['step_seconds'] for r in of)[len(of) // 2] * 1e3:.0f} |")
    return [*lines, ""]


def main():
    p = arguments(__doc__, SETTINGS)
    p.add_argument("--model_folder", help="a pretrained encoder with its tokenizer")
    p.add_argument("--python", default=sys.executable, help="that has torch and transformers")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--studies", default="", help="part of the names of those to run; default: all")
    a = p.parse_args()
    study = Study("finetune", ("study", "preset", "seed"), KEPT, a)
    cases = SETTINGS[a.setting]
    if a.hours > 0 and not a.model_folder:
        p.error("--model_folder is needed to run anything")
    wanted = [({"study": name, "preset": way, "seed": seed}, [*case.flags(a.model_folder), *flags])
              for seed in range(a.seeds) for name, case in cases.items() if a.studies in name
              for way, flags in WAYS.items()] if a.hours > 0 else []
    study.run(wanted)
    for name, case in cases.items():
        if a.hours > 0 and a.studies in name:
            run_rivals(study, a, name, case, a.seeds)
    lines = []
    for name, case in cases.items():
        rows = [r for r in study.rows if r["study"] == name]
        if rows:
            lines += table(name, case, rows, [*WAYS, *RIVALS])
    study.write("Fine-tuning", "MiniLM-L6 (sentence embeddings) on GLUE's dev sets; scores in "
                "percent, differences paired by seed with their 95 % interval.", lines)


if __name__ == "__main__":
    main()
