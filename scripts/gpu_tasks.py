#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains every task for some steps on a device under some presets, each with small made data, and
compares the losses with those of the CPU: the first step's must agree, all must be finite. What is
done stays done for the same program: a second call goes on. Prints the first and last loss and the
CPU's last.

    python scripts/gpu_tasks.py --program build-cuda/compact --device cuda --folder build-cuda/check
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from measuring import exit_code, hash_of  # noqa: E402

PRESETS = ["exact", "compact", "gact-l1", "pool"]
TEXTS = ["language-modeling", "prompt-completion", "text-classification", "glue"]
FOR = {"compact": TEXTS, "pool": ["image-classification"]}  # what projects and what pools; others: all
TOLERANCE = 0.01  # of the first step's loss, f32 on both sides


def npy(dtype, shape, values):
    """Bytes of numpy's file form, version 1."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape},), }}"
    head = head.ljust(117) + "\n"  # 128 bytes with the ten before it
    code = {"<f4": "f", "<i4": "i", "<i8": "q"}[dtype]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}{code}", *values)


def write_graph(path, nodes=1700, classes=4, features=16):
    """A ring of nodes in classes, told by their features, in the form of Planetoid's archives."""
    draw = random.Random(1)
    neighbours = [sorted({(n - 1) % nodes, (n + 1) % nodes, (n + classes) % nodes}) for n in range(nodes)]
    arrays = {
        "adj_data": ("<f4", [1.0] * sum(map(len, neighbours))),
        "adj_indices": ("<i4", [m for row in neighbours for m in row]),
        "adj_indptr": ("<i4", [sum(map(len, neighbours[:n])) for n in range(nodes + 1)]),
        "adj_shape": ("<i8", [nodes, nodes]),
        "attr_data": ("<f4", [1.0] * (2 * nodes)),
        "attr_indices": ("<i4", [f for n in range(nodes) for f in (n % classes, draw.randrange(classes, features))]),
        "attr_indptr": ("<i4", list(range(0, 2 * nodes + 1, 2))),
        "attr_shape": ("<i8", [nodes, features]),
        "labels": ("<i8", [n % classes for n in range(nodes)]),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, (dtype, values) in arrays.items():
            archive.writestr(name + ".npy", npy(dtype, len(values), values))


def write_graph_set(path, count=40):
    """Rings of 5 or 6 tagged nodes in two classes."""
    lines = [str(count)]
    for i in range(count):
        nodes = 5 + i % 2
        lines.append(f"{nodes} {i % 2}")
        lines += [f"{(n + i) % 3} 2 {(n - 1) % nodes} {(n + 1) % nodes}" for n in range(nodes)]
    path.write_text("\n".join(lines) + "\n")


def write_images(path, count=120):
    """Records of CIFAR-10 whose brightness tells the class."""
    draw = random.Random(2)
    path.write_bytes(b"".join(bytes([i % 10]) + bytes(20 * (i % 10) + draw.randrange(40) for _ in range(3072)) for i in range(count)))


def write_texts(folder):
    """Sentences of few words, as .tsv with a header and as CoLA without; and their vocabulary."""
    draw, words = random.Random(3), "a film that is very not it was".split()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *words]) + "\n")
    (folder / "glue/CoLA").mkdir(parents=True, exist_ok=True)
    for name in ("train.tsv", "dev.tsv"):
        rows = [(" ".join(draw.choices(words, k=draw.randint(1, 9))) + (" good" if i % 2 else " bad"), i % 2) for i in range(80)]
        (folder / name).write_text("sentence\tlabel\n" + "".join(f"{text}\t{'yes' if label else 'no'}\n" for text, label in rows))
        (folder / "glue/CoLA" / name).write_text("".join(f"made\t{label}\t\t{text}\n" for text, label in rows))
    prompts = [{"prompt": f"twice {37 * i} is ", "completion": str(74 * i)} for i in range(40)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))


def make_data(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder / "graph.npz")
    write_graph_set(folder / "graphs.txt")
    write_images(folder / "images.bin")
    write_texts(folder)


def tasks(data):
    """Task -> its flags of compact train."""
    vocabulary = f"--tokenizer=wordpiece:file={data / 'vocab.txt'}"
    held_out = "--validation_split=0.25"
    return {
        "language-modeling": [
            "--model=llama-tiny", "--tokenizer=bytes", "--block_size=64",
            f"--train_file={ROOT / 'examples/data/hard-times.txt'}", "--max_eval_samples=8"],
        "prompt-completion": [
            "--model=llama-tiny", "--tokenizer=bytes", "--block_size=32", f"--train_file={data / 'prompts.jsonl'}", held_out],
        "text-classification": [
            "--model=bert-tiny", vocabulary, "--max_seq_length=24",
            f"--train_file={data / 'train.tsv'}", f"--validation_file={data / 'dev.tsv'}"],
        "glue": ["--task_name=cola", "--model=bert-tiny", vocabulary, "--max_seq_length=24", f"--data_dir={data / 'glue'}"],
        "image-classification": [
            "--model=resnet20", "--width_mult=0.5", f"--train_file={data / 'images.bin'}", held_out],
        "node-classification": ["--model=gcn", f"--train_file={data / 'graph.npz'}"],
        "graph-classification": ["--model=gat", f"--train_file={data / 'graphs.txt'}", held_out],
    }  # fmt: skip


def train(a, task, flags, preset, device):
    """{status, losses, message, seconds} of one run."""
    out = a.folder / "runs" / f"{task}-{preset}-{device}"
    shutil.rmtree(out, ignore_errors=True)
    command = [a.program, "train", f"--task={task}", *flags, f"--preset={preset}", f"--device={device}", f"--max_steps={a.steps}",
               "--logging_steps=1", "--per_device_train_batch_size=8", "--seed=1", "--threads=2",
               f"--cache_dir={a.folder / 'cache'}", f"--output_dir={out}"]  # fmt: skip
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=a.limit)
    except subprocess.TimeoutExpired:
        return {"status": f"over {a.limit:.0f} s", "losses": []}
    result = {"seconds": round(time.monotonic() - begin, 1), "losses": []}
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return {**result, "status": f"exit code {done.returncode}", "message": message[-1] if message else ""}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            result["losses"].append(row["loss"])
    good = len(result["losses"]) == a.steps and all(math.isfinite(x) for x in result["losses"])
    return {**result, "status": "ok" if good else "losses missing or not finite"}


def key_of(a):
    """What results hold for: the program, what it is given, and how long it runs."""
    return hash_of(pathlib.Path(a.program), pathlib.Path(__file__), a.steps)


def judged(here, cpu):
    """The status of a run beside the same on the CPU."""
    if here["status"] != "ok" or cpu["status"] != "ok":
        return here["status"] if here["status"] != "ok" else "on the CPU: " + cpu["status"]
    apart = abs(here["losses"][0] - cpu["losses"][0]) / max(abs(cpu["losses"][0]), 1e-9)
    return "ok" if apart <= TOLERANCE else f"first loss {apart:.1%} from the CPU's"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default="build-cuda/compact")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "build-cuda/check", help="data, runs and results")
    p.add_argument("--tasks", nargs="+", help="only these")
    p.add_argument("--presets", nargs="+", default=PRESETS)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--limit", type=float, default=60, help="seconds a run may take")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    a = p.parse_args()
    a.folder = a.folder.resolve()
    a.program = str(pathlib.Path(a.program).resolve())
    end = time.monotonic() + a.minutes * 60
    if not (a.folder / "data/prompts.jsonl").exists():  # the last that is written
        make_data(a.folder / "data")
    path = a.folder / f"tasks-{a.device}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    key = key_of(a)
    results = stored["runs"] if stored.get("key") == key else {}
    good = failed = left = 0
    for task, flags in tasks(a.folder / "data").items():
        if a.tasks and task not in a.tasks:
            continue
        for preset in a.presets:
            if task not in FOR.get(preset, [task]):
                continue
            name = f"{task} {preset}"
            if results.get(name, {}).get("status") != "ok":
                if end - time.monotonic() < 15:
                    left += 1
                    continue
                here = train(a, task, flags, preset, a.device)
                cpu = here if a.device == "cpu" else train(a, task, flags, preset, "cpu")
                results[name] = {**here, "status": judged(here, cpu), "cpu_losses": cpu["losses"]}
                path.write_text(json.dumps({"key": key, "runs": results}, indent=1) + "\n")
            r = results[name]
            good += r["status"] == "ok"
            failed += r["status"] != "ok"
            numbers = " ".join(f"{x:.4f}" for x in (r["losses"][:1] + r["losses"][-1:] + r["cpu_losses"][-1:]))
            print(f"{task:22} {preset:10} {r['status']:12} {numbers}  {r.get('message', '')}", flush=True)
    print(f"{good} runs as they should be, {failed} not, {left} left for another time")
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
