#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of DPO: the program's `--task preference` beside TRL's DPOTrainer and the matrix products alone, time and peak.

A LLaMA of 58 M parameters, 33 M of them embedding and head, float32, AdamW. Every answer has `--length` tokens with its prompt. TRL runs with the
reference model beside the trained one, with log probabilities of the reference computed before (as the program does), and that with gradient
checkpointing. Peaks are of what is allocated in steps behind the second, weights and optimizer state included. Every way is a process of its own;
they follow each other, `--rounds` times, and times are medians.

    python bench/preference.py --out bench/results/preference.md
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import measuring

SHAPE = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
         "vocab_size": 32000, "max_position_embeddings": 2048, "eos_token_id": 0, "bos_token_id": None, "pad_token_id": 0}  # fmt: skip
WAYS = {
    "TRL": {},
    "TRL, reference computed before": {"precompute_ref_log_probs": True},
    "TRL, the same, checkpointing": {"precompute_ref_log_probs": True, "gradient_checkpointing": True},
    "compact, exact": ["--preset=exact"],
    "compact, recompute": ["--preset=recompute"],
}


def make(a, folder):
    """The model with a tokenizer of its text, and pairs that are cut to the length asked for."""
    import tokenizers
    import transformers

    transformers.set_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).save_pretrained(folder / "model")
    words = (measuring.ROOT / "examples/data/pride-and-prejudice.txt").read_text().split()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    made.train_from_iterator(words, tokenizers.trainers.BpeTrainer(vocab_size=4000, special_tokens=["<end>"], show_progress=False,
                                                                   initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>").save_pretrained(folder / "model")
    with open(folder / "pairs.jsonl", "w") as file:
        for i in range(a.batch):  # every step has all of them
            prompt, chosen, rejected = (" " + " ".join(words[(97 * i + 31 * k) * 5 :][: 20 if k == 0 else a.length]) for k in range(3))
            file.write(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n")


def run_trl(a, folder):
    """One way of TRL's in this process; its figures as JSON."""
    import datasets
    import torch
    import transformers
    import trl

    import compact

    torch.set_num_threads(a.threads)
    times, peaks = [], []
    with compact.Meter() as meter:

        class Watch(transformers.TrainerCallback):
            def on_step_begin(self, *_, **__):
                meter.reset_peak()
                self.begin = time.perf_counter()

            def on_step_end(self, *_, **__):
                times.append(time.perf_counter() - self.begin)
                peaks.append(meter.peak)

        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
        data = datasets.Dataset.from_list([json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()])
        usual = {"gradient_checkpointing": False} | WAYS[a.way]
        settings = trl.DPOConfig(
            output_dir=folder / "trl", per_device_train_batch_size=a.batch, max_steps=a.steps, learning_rate=1e-6, max_length=a.length + 1,
            lr_scheduler_type="constant", report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, logging_steps=1, save_strategy="no", **usual)  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
        trainer = trl.DPOTrainer(model, args=settings, train_dataset=data, processing_class=tokenizer, callbacks=[Watch()])
        trainer.train()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        print("\n" + json.dumps({"peak": max(peaks[1:]), "seconds": statistics.median(times[1:]), "loss": losses[-1]}))


def run_ours(a, folder, flags):
    out = folder / "run"
    command = [measuring.program_at(a.program), "train", "--task=preference", f"--model_name_or_path={folder / 'model'}", f"--train_file={folder / 'pairs.jsonl'}",
               f"--block_size={a.length}", f"--per_device_train_batch_size={a.batch}", f"--max_steps={a.steps}", "--validation_split=0", "--learning_rate=1e-6",
               "--lr_scheduler_type=constant", "--logging_steps=1", f"--threads={a.threads}", f"--output_dir={out}", "--overwrite_output_dir=true", "--device=cpu", *flags]  # fmt: skip
    code, _, errors = measuring.run(command, a.limit)
    if code != 0:
        sys.exit(f"{flags}: {errors}")
    rows = [row for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in row]
    results = json.loads((out / "all_results.json").read_text())
    return {"peak": results["memory/peak_bytes"], "seconds": results["step_seconds"], "loss": rows[-1]["loss"]}


def floor(a):
    """Seconds of the products of linear layers and head, forward and both gradients."""
    import torch

    torch.set_num_threads(a.threads)
    n, m, v, layers = (SHAPE[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"))
    tokens, total = 2 * a.batch * a.length, 0.0
    for width, out, times in ((n, n, 4 * layers), (n, m, 2 * layers), (m, n, layers), (n, v, 1)):
        x, w, gy = torch.randn(tokens, width), torch.randn(out, width), torch.randn(tokens, out)
        for product in (lambda: x @ w.T, lambda: gy @ w, lambda: gy.T @ x):  # noqa: B023
            product()  # not timed
            begin = time.perf_counter()
            product()
            total += times * (time.perf_counter() - begin)
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=str(measuring.ROOT / "build/compact"))
    p.add_argument("--batch", type=int, default=4, help="pairs")
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--limit", type=float, default=1200, help="seconds of one process")
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--way", help=argparse.SUPPRESS)
    p.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.way:
        return run_trl(a, a.folder)
    found, floors = {way: [] for way in WAYS}, []
    with tempfile.TemporaryDirectory(prefix="compact-preference-") as name:
        folder = pathlib.Path(name)
        make(a, folder)
        for _ in range(a.rounds):
            floors.append(floor(a))
            for way, how in WAYS.items():
                if isinstance(how, list):
                    row = run_ours(a, folder, how)
                else:
                    command = [sys.executable, __file__, "--way", way, "--folder", folder]
                    command += [f"--{key}={getattr(a, key)}" for key in ("batch", "length", "steps", "threads")]
                    code, out, errors = measuring.run(command, a.limit)
                    if code != 0:
                        sys.exit(f"{way}: {errors}")
                    row = json.loads(out.strip().splitlines()[-1])
                found[way].append(row)
                print(f"{way}: {row}", file=sys.stderr, flush=True)
    base = found["TRL"]
    least, usual = statistics.median(floors), statistics.median(r["seconds"] for r in base)
    lines = measuring.origin_lines("A step of preference tuning (DPO)", measuring.origin("cpu"))
    lines += ["", f"A LLaMA of 58 M parameters, vocabulary {SHAPE['vocab_size']:,}, float32, AdamW, {a.batch} pairs of 2 × {a.length} tokens, {a.threads} threads,",
              f"{a.rounds} round(s). TRL is DPOTrainer of trl {measuring.importlib.metadata.version('trl')}. torch's products in float32 are MKL's; the program takes",
              "those of oneDNN where a short measurement finds them faster, so that a step can take less than the products alone.", "",
              "| | peak MiB | beside TRL | step s | beside TRL | beside the products | loss of the last step |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for way, rows in found.items():
        peak, seconds = rows[0]["peak"], statistics.median(r["seconds"] for r in rows)
        lines.append(f"| {way} | {peak / 2**20:,.0f} | {peak / base[0]['peak']:.2f} | {seconds:.2f} | {seconds / usual:.2f} | {seconds / least:.2f} | {rows[-1]['loss']:.5f} |")
    lines.append(f"| the products alone, by torch | | | {least:.2f} | {least / usual:.2f} | 1.00 | |")
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
