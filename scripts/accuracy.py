#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the accuracy study of scripts/accuracy.sh and writes its table. Standard library only."""
import pathlib

from study import DATA, Study, arguments, shown, table

# A way of training: its flags.
LEVELS = {name: ["--preset", name] for name in ("off", "gact-l1", "gact-l2", "gact-l2.2", "gact-l1.2")}
POOLED = {name: ["--preset", name] for name in ("pool", "pool-quant")}
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
CIFAR = DATA / "vision/cifar10-jpeg-train.tar.xz"
CORA = DATA / "graph/cora.npz"
TEXT = DATA / "text/tinyshakespeare.txt"


def for_epochs(ways, epochs, suffix=""):
    return {name + suffix: [*flags, "--num_train_epochs", str(epochs)] for name, flags in ways.items()}


def image_flags(files, width):
    return ["--task", "image-classification", "--model", "resnet20", "--width_mult", str(width),
            "--train_file", *map(str, files), "--validation_split", "0.1",
            "--per_device_train_batch_size", "128", "--per_device_eval_batch_size", "250",
            "--optim", "sgd", "--learning_rate", "0.2",
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


class Case:
    """Flags of all runs, the file that must be there, the figure that is compared to `off`, seeds."""

    def __init__(self, flags, file, figure, seeds, ways=None):
        self.flags, self.file, self.figure, self.seeds = flags, file, figure, seeds
        self.ways = ways or LEVELS


def image_cases(epochs, width, seeds):
    fashion = [FASHION / "train-images-idx3-ubyte.gz"]
    some = {name: LEVELS[name] for name in ("off", "gact-l2")}
    longer = epochs * 3 // 2
    more = for_epochs(POOLED, longer, f" {longer} epochs")
    form = "half width" if width == 0.5 else "full width"
    return {
        f"resnet20, {form}, CIFAR-10, {epochs} epochs":
            Case(image_flags([CIFAR], width), CIFAR, "eval_accuracy", seeds,
                 {**for_epochs({**LEVELS, **POOLED}, epochs), **more}),
        f"resnet20, {form}, Fashion-MNIST, {epochs} epochs":
            Case(image_flags(fashion, width), fashion[0], "eval_accuracy", seeds,
                 {**for_epochs({**some, **POOLED}, epochs), **more}),
    }


SETTINGS = {
    "cpu": {
        **image_cases(10, 0.5, 2),
        "GCN, Cora": Case(graph_flags("gcn", 0.01, 5e-4, 200), CORA, "test_accuracy", 10),
        "GAT, Cora": Case(graph_flags("gat", 0.005, 5e-4, 200), CORA, "test_accuracy", 10),
        "llama-mini": Case(text_flags("llama-mini", 200, 16), TEXT, "eval_loss", 5),
    },
    "gpu": {
        **image_cases(200, 1, 3),
        "GCN, Cora": Case(graph_flags("gcn", 0.01, 5e-4, 200), CORA, "test_accuracy", 10),
        "GAT, Cora": Case(graph_flags("gat", 0.005, 5e-4, 200), CORA, "test_accuracy", 10),
        "llama-60m": Case(text_flags("llama-60m", 2000, 128), TEXT, "eval_loss", 3),
    },
}

KEPT = ("eval_accuracy", "test_accuracy", "eval_loss", "train_loss", "step_seconds",
        "memory/peak_bytes", "memory/saved_bytes")


def main():
    p = arguments(__doc__, SETTINGS)
    p.add_argument("--studies", help="parts of names, joined by commas; default: all")
    p.add_argument("--presets", help="names joined by commas; default: all")
    a = p.parse_args()
    study = Study("accuracy", ("study", "preset", "seed"), KEPT, a)
    cases = SETTINGS[a.setting]
    wanted = []
    for name, case in cases.items():
        if a.studies and not any(part in name for part in a.studies.split(",")):
            continue
        if not case.file.exists():
            print(f"{name}: passed over, {case.file} is not there")
            continue
        ways = {w: f for w, f in case.ways.items() if not a.presets or w in a.presets.split(",")}
        wanted += [({"study": name, "preset": way, "seed": seed}, [*case.flags, *flags])
                   for seed in range(case.seeds) for way, flags in ways.items()]
    study.run(wanted)
    names = list(cases)
    study.rows = [r for r in study.rows if r["study"] in names and r["preset"] in cases[r["study"]].ways]
    study.rows.sort(key=lambda r: (names.index(r["study"]),
                                   list(cases[r["study"]].ways).index(r["preset"]), r["seed"]))
    lines = []
    for name, case in cases.items():
        mine = [r for r in study.rows if r["study"] == name]
        lines += table(name, f"`{shown(case.flags)}`", mine, case.ways, case.figure) if mine else []
    study.write("Accuracy study",
                f"`scripts/accuracy.sh --setting {a.setting}`. Accuracy in percent, loss in nats a token, "
                "both of data that no run trained on; differences to `off` paired by seed, with their 95 % "
                "intervals. Bytes: what is kept from forward to backward, and a step's highest moment. Runs "
                "shared two cores, so that times of steps tell little.", lines)


if __name__ == "__main__":
    main()
