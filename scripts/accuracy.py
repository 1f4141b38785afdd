#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the accuracy study of scripts/accuracy.sh and writes its table. Standard library only."""
import pathlib

from study import DATA, Study, arguments, difference

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


# name -> flags, the file that must be there, the figure that is compared, seeds
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


def shown(flags):
    """Without the paths of this machine."""
    return [pathlib.Path(f).name if f.startswith("/") else f for f in flags]


def order(seeds):
    """Seeds one after another; what only shows how far equal bits go comes last."""
    later = "gact-l1.2"
    return [(p, s) for s in range(seeds) for p in LEVELS if p != later] + [(later, s) for s in range(seeds)]


def table(name, flags, figure, rows):
    unit = 100 if figure.endswith("accuracy") else 1
    lines = [f"## {name}", "", f"`{' '.join(shown(flags))}`", "",
             f"| preset | {figure} | difference | seeds | saved MiB | step ms |", "|---|---|---|---|---|---|"]
    at = {p: {r["seed"]: r[figure] for r in rows if r["preset"] == p} for p in LEVELS}
    for preset in LEVELS:
        of = [r for r in rows if r["preset"] == preset]
        if not of:
            continue
        mean = sum(at[preset].values()) / len(of) * unit
        lines.append(
            f"| {preset} | {mean:.3f} | {'' if preset == 'off' else difference(at[preset], at['off'], unit)}"
            f" | {len(of)} | {of[0]['memory/saved_bytes'] / 2**20:.2f} | "
            f"{sorted(r['step_seconds'] for r in of)[len(of) // 2] * 1e3:.0f} |")
    return [*lines, ""]


def main():
    p = arguments(__doc__, SETTINGS)
    p.add_argument("--studies", help="parts of names, joined by commas; default: all")
    a = p.parse_args()
    study = Study("accuracy", ("study", "preset", "seed"), KEPT, a)
    wanted = []
    for name, (flags, file, _, seeds) in SETTINGS[a.setting].items():
        if a.studies and not any(part in name for part in a.studies.split(",")):
            continue
        if not file.exists():
            print(f"{name}: passed over, {file} is not there")
            continue
        wanted += [({"study": name, "preset": preset, "seed": seed}, [*flags, "--preset", preset])
                   for preset, seed in order(seeds)]
    study.run(wanted)
    names = list(SETTINGS[a.setting])
    study.rows = [r for r in study.rows if r["study"] in names]
    study.rows.sort(key=lambda r: (names.index(r["study"]), LEVELS.index(r["preset"]), r["seed"]))
    lines = []
    for name, (flags, _, figure, _) in SETTINGS[a.setting].items():
        mine = [r for r in study.rows if r["study"] == name]
        lines += table(name, flags, figure, mine) if mine else []
    study.write("Accuracy study",
                f"`scripts/accuracy.sh --setting {a.setting}`. Accuracy in percent, loss in nats a token, "
                "both of data that no run trained on; differences to `off` paired by seed, with their 95 % "
                "intervals. Bytes: what is kept from forward to backward.", lines)


if __name__ == "__main__":
    main()
