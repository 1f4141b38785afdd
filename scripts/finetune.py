#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes pretrained models under several presets and writes a table with differences paired by
seed: an encoder on GLUE, with Hugging Face's code beside, and a small LLaMA on novels. Needs the
encoder's folder and data (COMPACT_DATA). What runs Hugging Face's code is --python; it needs torch,
transformers and, for LoRA, peft.

    scripts/finetune.py --model_folder "$(scripts/fetch_minilm.sh)"
"""
import json
import subprocess
import sys

from study import DATA, ROOT, Study, arguments, novels, shown, table


def projected(preset, rank, alpha, period=500):
    return ["--preset", preset, "--rank", str(rank), "--scale", str(alpha),
            "--update_proj_gap", str(period)]


# Ways of training: their flags; of Hugging Face's code those of bench/rivals/hf_sequence.py. LoRA is
# given the larger rate that it needs.
WAYS = {
    "off": ["--preset", "off"],
    "exact": ["--preset", "exact"],
    "compact n/4": ["--preset", "compact"],
    "compact r=8": projected("compact", 8, 2),
    "compact r=8, T=100": projected("compact", 8, 2, 100),
    "compact r=8, α=8": projected("compact", 8, 8),
    "compact r=8, α=8, T=50": projected("compact", 8, 8, 50),
    "compact r=32, α=2": projected("compact", 32, 2),
    "compact r=32, α=4": projected("compact", 32, 4),
    "compact r=8, Muon": [*projected("compact", 8, 2), "--optim", "muon"],
    "compact r=4": projected("compact", 4, 4),
    "compact-paper r=8": projected("compact-paper", 8, 2),
    "gact-l2": ["--preset", "gact-l2"],
}
RIVALS = {
    "transformers": [],
    "transformers, LoRA r=8": ["--lora", "8", "--learning_rate", "5e-4"],
}
# The update of compact-paper is scaled by 1/4: four times the rate means the same step.
DECODER_WAYS = {
    "off": ["--preset", "off"],
    "exact": ["--preset", "exact"],
    "off, blocks at 4e-3": ["--preset", "off", "--projected_learning_rate", "4e-3"],
    "compact n/4": ["--preset", "compact", "--update_proj_gap", "50"],
    "compact n/4, blocks at 4e-3": ["--preset", "compact", "--update_proj_gap", "50",
                                    "--projected_learning_rate", "4e-3"],
    "compact n/4, Muon, blocks at 4e-3": ["--preset", "compact", "--optim", "muon", "--update_proj_gap",
                                          "50", "--projected_learning_rate", "4e-3"],
    "compact-paper n/4": ["--preset", "compact-paper", "--projected_learning_rate", "4e-3"],
    "compact-paper n/4, blocks at 16e-3": ["--preset", "compact-paper", "--projected_learning_rate",
                                           "1.6e-2"],
    "gact-l1": ["--preset", "gact-l1"],
    "gact-l2": ["--preset", "gact-l2"],
}
KEPT = ("eval_loss", "eval_accuracy", "eval_matthews_correlation", "step_seconds",
        "memory/peak_bytes", "memory/saved_bytes")


class Glue:
    """A task with flags that both programs take alike, and its figure."""
    ways, rivals = WAYS, RIVALS

    def __init__(self, task, folder, figure, batch, epochs, rate, samples=0):
        self.task, self.folder, self.figure = task, DATA / "glue" / folder, figure
        self.batch, self.epochs, self.rate, self.samples = batch, epochs, rate, samples

    def flags(self, args, cache):
        return ["--task", "glue", "--task_name", self.task, "--data_dir", str(self.folder),
                "--model_name_or_path", str(args.model_folder),
                "--per_device_train_batch_size", str(self.batch),
                "--per_device_eval_batch_size", "64", "--num_train_epochs", str(self.epochs),
                "--learning_rate", str(self.rate), "--lr_scheduler_type", "linear",
                "--warmup_steps", "0.1", "--max_train_samples", str(self.samples),
                "--logging_steps", "100"]

    def rival_flags(self, args):
        return ["--task_name", self.task, "--data_dir", str(self.folder), "--model", args.model_folder,
                "--batch", str(self.batch), "--epochs", str(self.epochs),
                "--learning_rate", str(self.rate), "--max_train_samples", str(self.samples)]

    def text(self):
        return f"batch {self.batch}, {self.epochs} epochs, learning rate {self.rate:g}"


class Novels:
    """stories260K, trained on children's stories, goes on with novels."""
    ways, rivals, figure = DECODER_WAYS, {}, "eval_loss"
    SETTINGS = ["--block_size", "256", "--per_device_train_batch_size", "16", "--max_steps", "300",
                "--learning_rate", "1e-3", "--warmup_steps", "0.1", "--min_lr_ratio", "0.1",
                "--max_eval_samples", "256", "--logging_steps", "50"]

    def flags(self, args, cache):
        folder = cache / "stories260K"
        if not (folder / "config.json").exists():
            subprocess.run([args.python, str(ROOT / "scripts/stories_folder.py"),
                            str(DATA / "pretrained/stories260K"), str(folder)], check=True)
        files, held = novels(cache)
        return ["--model_name_or_path", str(folder), "--train_file", *map(str, files),
                "--validation_file", *map(str, held), *self.SETTINGS]

    def text(self):
        return f"`{shown(self.SETTINGS)}`, loss on unseen books"


SETTINGS = {
    "cpu": {
        "CoLA": Glue("cola", "CoLA", "eval_matthews_correlation", 32, 3, 1e-4),
        "SST-2, 10,000 sentences": Glue("sst2", "SST-2", "eval_accuracy", 32, 2, 5e-5, 10000),
        "stories260K on novels": Novels(),
    },
    "gpu": {
        "CoLA": Glue("cola", "CoLA", "eval_matthews_correlation", 32, 30, 2e-5),
        "SST-2": Glue("sst2", "SST-2", "eval_accuracy", 16, 30, 2e-5),
        "stories260K on novels": Novels(),
    },
}


def run_rival(study, key, flags):
    """Adds a row of Hugging Face's code."""
    library = ROOT / "build/bench/rivals/libcounting_allocator.so"
    command = [study.args.python, str(ROOT / "bench/rivals/hf_sequence.py"), *flags,
               "--seed", str(key["seed"]), "--threads", str(study.threads),
               *(["--allocator", str(library)] if library.exists() else []),
               *(["--device", "cuda"] if study.args.setting == "gpu" else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        print(f"{key['preset']}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    values = json.loads(done.stdout.splitlines()[-1])
    study.add({**key, **{k: values.get(k) for k in KEPT}})


def run_all(study, cases):
    """Seed by seed, so that a stopped study already compares all ways."""
    a = study.args

    def keys(name, ways, seed):
        return [{"study": name, "preset": way, "seed": seed} for way in ways]
    for seed in range(a.seeds):
        for name, case in cases.items():
            flags = case.flags(a, study.cache)
            study.run([(key, [*flags, *case.ways[key["preset"]]]) for key in keys(name, case.ways, seed)])
        for name, case in cases.items():
            study.each([(key, [*case.rival_flags(a), *case.rivals[key["preset"]]])
                        for key in keys(name, case.rivals, seed)],
                       lambda key, flags: run_rival(study, key, flags))


def main():
    p = arguments(__doc__, SETTINGS)
    p.add_argument("--model_folder", help="a pretrained encoder with its tokenizer")
    p.add_argument("--python", default=sys.executable, help="that has torch and transformers")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--studies", default="", help="part of the names of those to run; default: all")
    a = p.parse_args()
    study = Study("finetune", ("study", "preset", "seed"), KEPT, a)
    cases = SETTINGS[a.setting]
    chosen = {name: case for name, case in cases.items() if a.studies in name}
    if a.hours > 0:
        if not a.model_folder and any(isinstance(case, Glue) for case in chosen.values()):
            p.error("--model_folder is needed for GLUE")
        run_all(study, chosen)
    lines = []
    for name, case in cases.items():
        rows = [r for r in study.rows if r["study"] == name]
        if rows:
            lines += table(name, case.text(), rows, [*case.ways, *case.rivals], case.figure,
                           times=a.setting == "gpu")
    study.write("Fine-tuning", "GLUE: MiniLM-L6 (sentence embeddings), scores on dev sets in percent. "
                "Differences are paired by seed, with their 95 % interval.", lines)


if __name__ == "__main__":
    main()
