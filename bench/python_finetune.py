#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with and without compact: losses step by step, scores and peaks of memory.

sst2: MiniLM (scripts/fetch_minilm.sh) on a part of SST-2, scored on its 872 sentences. text: a LLaMA of
1.2 M parameters from random weights on bytes of the bundled book, scored by its loss on what is left of
it. Every way trains with every seed, in a process of its own, on the same batches; intervals are of
95 % of the mean difference to plain's score with the same seed (Student's t).

    python bench/python_finetune.py --task sst2 --seeds 5 --model_dir .cache/minilm --data_dir DATA/glue/SST-2
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BOOK = SOURCE / "examples" / "data" / "pride-and-prejudice.txt"
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36}  # by seeds
# name: policy, optimizer (compact.optim's where it is named), and settings
WAYS = {
    "plain": (None, None, {}),
    "off": ("off", None, {}),
    "exact": ("exact", None, {}),
    "recompute": ("recompute", None, {}),
    "gact-l1": ("gact-l1", None, {}),
    "exact, moments in f8": ("exact", "AdamW", {"moments": "f8"}),
    "compact, AdamW": ("compact", "AdamW", {}),
    "compact, Muon": ("compact", "Muon", {}),
}


def encoder_task(a):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(a.seed)
    model = AutoModelForSequenceClassification.from_pretrained(a.model_dir, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(a.model_dir)

    def rows(name, most):
        lines = (pathlib.Path(a.data_dir) / name).read_text().splitlines()[1:]
        texts, labels = zip(*(line.rsplit("\t", 1) for line in lines[:most]))
        ids = tokenizer(list(texts), truncation=True, max_length=64, padding=False)
        return [{"input_ids": i, "attention_mask": m, "labels": int(y)} for i, m, y in zip(ids["input_ids"], ids["attention_mask"], labels)]

    def accuracy(given):
        return {"score": 100 * float((given.predictions.argmax(-1) == given.label_ids).mean())}

    return model, tokenizer, rows("train.tsv", a.samples), rows("dev.tsv", None), accuracy, 5e-5


def text_task(a):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(a.seed)
    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=6, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=256)  # fmt: skip
    data = torch.tensor(list(BOOK.read_bytes()))
    rows = [{"input_ids": r, "labels": r} for r in data[: len(data) // 128 * 128].view(-1, 128)]
    held_out = rows[-200:]
    return LlamaForCausalLM(config), None, rows[:-200], held_out, None, 2e-3


def run_one(a):
    """One way with one seed in this process; its figures as JSON."""
    import torch
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments
    from transformers import logging as hf_logging

    import compact
    import compact.hf

    hf_logging.set_verbosity_error()
    torch.set_num_threads(a.threads)
    policy, optimizer, settings = WAYS[a.way]
    with compact.Meter() as meter:
        model, tokenizer, train, test, metrics, rate = (encoder_task if a.task == "sst2" else text_task)(a)
        if policy:
            compact.apply(model, policy, seed=a.seed)
        rate = 4e-3 if optimizer == "Muon" and a.task == "text" else rate
        given = {}
        if optimizer == "Muon":
            given["optimizers"] = (compact.optim.Muon(model, lr=rate, adamw_lr=rate / 2, **settings), None)
        elif optimizer:
            given["optimizer_cls_and_kwargs"] = (compact.optim.AdamW, {"lr": rate, **settings})
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    output_dir=folder, max_steps=a.steps, per_device_train_batch_size=a.batch, per_device_eval_batch_size=64,
                    learning_rate=rate, lr_scheduler_type="linear", warmup_steps=a.steps // 10, logging_steps=1, report_to=[],
                    save_strategy="no", seed=a.seed, data_seed=a.seed, disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
                ),  # fmt: skip
                train_dataset=train, compute_metrics=metrics, callbacks=[compact.hf.Callback()],
                data_collator=DataCollatorWithPadding(tokenizer) if tokenizer else None, **given,
            )  # fmt: skip
            trainer.train()
            peak = meter.peak
            found = trainer.evaluate(test)
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        score = found["eval_score"] if "eval_score" in found else found["eval_loss"]
        print(json.dumps({"score": score, "peak": peak, "losses": losses}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--task", choices=["sst2", "text"], default="text")
    p.add_argument("--seeds", type=int, default=5, choices=sorted(T))
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--samples", type=int, default=10000, help="sentences of SST-2")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--model_dir")
    p.add_argument("--data_dir")
    p.add_argument("--ways", help="some of them, divided by semicolons")
    p.add_argument("--way", help=argparse.SUPPRESS)
    p.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.way:
        return run_one(a)
    ways = a.ways.split(";") if a.ways else list(WAYS)
    rows = {way: [] for way in ways}
    for seed in range(a.seeds):
        for way in ways:
            command = [sys.executable, __file__, "--way", way, "--seed", str(seed)]
            for key in ("task", "steps", "batch", "samples", "threads", "model_dir", "data_dir"):
                if getattr(a, key) is not None:
                    command += [f"--{key}", str(getattr(a, key))]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{way}: {done.stderr[-2000:]}")
            rows[way].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"seed {seed}, {way}: {rows[way][-1]['score']:.4f}, {rows[way][-1]['peak'] / 2**20:.1f} MiB", file=sys.stderr)
    import torch
    import transformers

    print(f"{a.task}, {a.steps} steps of {a.batch}, {a.seeds} seeds, {a.threads} threads of {platform.processor() or platform.machine()}, "
          f"torch {torch.__version__}, transformers {transformers.__version__}, {datetime.date.today()}, "
          f"by `{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`\n")  # fmt: skip
    score = "accuracy" if a.task == "sst2" else "loss on held-out text"
    print(f"| | {score} | beside plain | peak MiB | beside plain | largest difference of a step's loss |\n|---|---|---|---|---|---|")
    plain = rows[ways[0]]
    for way, found in rows.items():
        differences = [r["score"] - b["score"] for r, b in zip(found, plain)]
        spread = T[a.seeds] * statistics.stdev(differences) / a.seeds**0.5
        apart = max(abs(x - y) for r, b in zip(found, plain) for x, y in zip(r["losses"], b["losses"]))
        mean = statistics.mean(r["score"] for r in found)
        beside = f"{statistics.mean(differences):+.4f} ± {spread:.4f}" if way != ways[0] else ""
        peak = max(r["peak"] for r in found)
        ratio = peak / max(b["peak"] for b in plain)
        print(f"| {way} | {mean:.4f} | {beside} | {peak / 2**20:,.1f} | {ratio:.2f} | {apart:.1e} |")


if __name__ == "__main__":
    main()
