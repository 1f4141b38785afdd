# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that was saved once and lies in tests/cli/stored must go on loading, whatever becomes
of the code, and its run must go on to the losses that it had.

    stored_checkpoint.py [--make]      --make: writes tests/cli/stored again
"""
import json
import pathlib
import shutil
import sys
import tempfile

from _program import run

STORED = pathlib.Path(__file__).parent / "stored"
STEPS, SAVED = 6, 3
SHAPE = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
FLAGS = {
    "model_name_or_path": ".",
    "train_file": "text.txt",
    "tokenizer": "bytes",
    "output_dir": "out",
    "cache_dir": "cache",
    "block_size": 16,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": STEPS,
    "save_steps": SAVED,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "validation_split": 0.1,
    "preset": "compact",
    "update_proj_gap": 2,
    "threads": 1,
    "device": "cpu",
}


def train(folder, *more):
    words = "".join(f"word{i * 7919 % 97} " for i in range(600))
    (folder / "text.txt").write_text(words)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    flags = [f"--{name}={value}" for name, value in FLAGS.items()]
    done = run("train", *flags, *more, cwd=folder)  # relative paths: the state tells them
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    return done.stdout, [r["loss"] for r in rows if "loss" in r and r["step"] > SAVED]


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    if "--make" in sys.argv[1:]:
        losses = train(root)[1]
        shutil.rmtree(STORED, ignore_errors=True)
        shutil.copytree(root / f"out/checkpoint-{SAVED}", STORED / f"checkpoint-{SAVED}")
        (STORED / "losses.json").write_text(json.dumps(losses) + "\n")
        sys.exit()
    expected = json.loads((STORED / "losses.json").read_text())
    # A policy's file is read again: what it does to the network must be what was stored, in whatever
    # words; the preset's were others.
    (root / "same.policy").write_text("slot layers.*.mlp.silu = recompute\n")
    for more in [[], ["--policy=same.policy"]]:
        shutil.rmtree(root / "out", ignore_errors=True)
        shutil.copytree(STORED / f"checkpoint-{SAVED}", root / f"out/checkpoint-{SAVED}")
        text, found = train(root, "--resume_from_checkpoint=latest", *more)
        assert f"resumed from out/checkpoint-{SAVED} at step {SAVED}" in text, text
        assert len(found) == len(expected) == STEPS - SAVED
        # Another processor may sum in another order.
        assert all(abs(a - b) < 1e-4 for a, b in zip(found, expected)), (found, expected)
    for line in ["slot layers.*.mlp.silu = keep", "grad layers.*.attn.qkv = full", "moment * = bf16"]:
        (root / "other.policy").write_text(line + "\n")
        shutil.rmtree(root / "out")
        shutil.copytree(STORED / f"checkpoint-{SAVED}", root / f"out/checkpoint-{SAVED}")
        flags = [f"--{name}={value}" for name, value in FLAGS.items()]
        done = run("train", *flags, "--resume_from_checkpoint=latest", "--policy=other.policy",
                   cwd=root)
        assert done.returncode == 2 and "preset or policy differ" in done.stderr, done.stderr
