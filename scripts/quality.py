#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the quality study of scripts/quality.sh and writes its table. Exit code 75 where --hours left
runs over. Standard library only."""
import pathlib
import sys

from study import DATA, ROOT, Study, arguments, difference, novels

sys.path.insert(0, str(ROOT / "bench"))
from measuring import OUT_OF_TIME, device_name, slug_of, torch_version  # noqa: E402

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
    "try": {  # seconds a run, to try the study
        "flags": ["--model", "llama-tiny", "--tokenizer", "bytes", "--block_size", "64",
                  "--per_device_train_batch_size", "4", "--device", "cpu"],
        "steps": 6, "rates": [2e-3], "other_rate": 2e-3, "eval_blocks": 8,
    },
}
FIRST_SEED, MORE_SEEDS = 0, [1, 2]


def best_rates(rows, counts):
    """The best rate of each method that has one of these numbers of rates with the first seed."""
    best = {}
    for method in METHODS:
        first = [r for r in rows if r["method"] == method and r["seed"] == FIRST_SEED]
        if len(first) in counts:
            best[method] = min(first, key=lambda r: r["eval_loss"])["rate"]
    return best


def table(rows, rates):
    base = "off adamw"
    best = best_rates(rows, range(1, len(rates) + 1))
    lines = ["| method | " + " | ".join(f"rate {r:g}" for r in rates) +
             " | best over seeds | difference | seeds |", "|---|" + "---|" * (len(rates) + 3)]
    at_best = {m: {r["seed"]: r["eval_loss"] for r in rows if r["method"] == m and r["rate"] == best[m]}
               for m in best}
    for m, losses in at_best.items():
        first = {r["rate"]: r["eval_loss"] for r in rows if r["method"] == m and r["seed"] == FIRST_SEED}
        to_base = "0" if m == base else difference(losses, at_best.get(base, {}), digits=4)
        lines.append(f"| {m}{'' if len(first) == len(rates) else ' (not finished)'} | " +
                     " | ".join(f"{first[r]:.4f}" if r in first else "" for r in rates) +
                     f" | {sum(losses.values()) / len(losses):.4f} | {to_base} | {len(losses)} |")
    return lines


def main():
    p = arguments(__doc__, SETTINGS)
    p.add_argument("--results", type=pathlib.Path, help="where the table goes, under the device's name (default: bench/results)")
    a = p.parse_args()
    setting, name, machine = SETTINGS[a.setting], a.setting, ""
    if a.results:
        device = device_name("cuda" if name == "gpu" else "cpu")
        a.setting, machine = f"{name}-{slug_of(device)}", f"{device}, torch {torch_version()}; "
    study = Study("quality", ("method", "rate", "seed"),
                  ("eval_loss", "train_loss", "step_seconds", "memory/peak_bytes",
                   "memory/optimizer_bytes", "memory/saved_bytes"), a)
    if a.results:
        study.results = a.results / study.results.name
    files, held = novels(study.cache)

    def wanted(method, rate, seed):
        flags, factor = METHODS[method]
        row = {"method": method, "rate": rate, "seed": seed}
        # A run that `timeout` or Ctrl-C ended goes on from where it was saved.
        saved = list((study.folder / "runs" / study._name(row)).glob("checkpoint-*"))
        resume = ["--resume_from_checkpoint", "latest"] if saved else []
        return (row,
                [*resume, *setting["flags"], *flags, "--train_file", *map(str, files),
                 "--validation_file", *map(str, held), "--max_steps", str(setting["steps"]),
                 "--warmup_steps", "0.1", "--min_lr_ratio", "0.1",
                 "--learning_rate", str(setting["other_rate"]),
                 "--projected_learning_rate", str(rate * factor),
                 "--max_eval_samples", str(setting["eval_blocks"]), "--logging_steps", "50"])

    # Middle rates first, so that a stopped study already compares all methods.
    middle = len(setting["rates"]) // 2
    rates = sorted(setting["rates"], key=lambda r: abs(setting["rates"].index(r) - middle))
    study.run([wanted(method, rate, FIRST_SEED) for rate in rates for method in METHODS])
    best = best_rates(study.rows, [len(rates)])
    study.run([wanted(method, rate, seed) for seed in MORE_SEEDS for method, rate in best.items()])
    left = len(METHODS) * (len(rates) + len(MORE_SEEDS)) - len(study.rows)
    study.rows.sort(key=lambda r: (list(METHODS).index(r["method"]), r["seed"], r["rate"]))
    study.write("Quality study",
                f"{machine}`scripts/quality.sh --setting {name}`; {setting['steps']} steps, flags "
                f"`{' '.join(setting['flags']).replace(f'{DATA}/', '')}`, other parameters at learning rate "
                f"{setting['other_rate']:g}. Loss in nats a token on unseen books; difference to `off "
                "adamw` at its own best rate, paired by seed, with its 95 % interval.",
                table(study.rows, setting["rates"]))
    print(f"{len(study.rows)} runs, {left} left for another time")
    return OUT_OF_TIME if left > 0 and a.hours > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
