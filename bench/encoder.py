#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory and time of fine-tuning steps of an encoder in float32, beside Hugging Face's code on
the same texts, as ratios measured in one run: all weights, and LoRA (peft).

Every run is a fresh process on the same threads and batch; each round takes all in turn, and times
are medians over rounds. Bytes are exact: both sides count them with an allocator. The floor is the
step's matrix products alone. Texts are pieces of the bundled novel, cut to the length.

    python bench/encoder.py --model "$(scripts/fetch_minilm.sh)" --python .venv/bin/python
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measuring  # noqa: E402 - after the path
import memory_table as table  # noqa: E402

# Name -> side and flags. A rival's products go through oneDNN as ours do, where not said otherwise.
ROWS = {
    "transformers": ("hf", ["--matmul", "onednn"]),
    "transformers, default products": ("hf", []),
    "transformers, LoRA r=8": ("hf", ["--matmul", "onednn", "--lora", "8"]),
    "off": ("ours", ["--preset", "off"]),
    "exact": ("ours", ["--preset", "exact"]),
    "recompute": ("ours", ["--preset", "recompute"]),
    "compact n/4": ("ours", ["--preset", "compact"]),
    "compact r=8": ("ours", ["--preset", "compact", "--rank", "8"]),
    "compact-paper r=8": ("ours", ["--preset", "compact-paper", "--rank", "8"]),
    "gact-l1": ("ours", ["--preset", "gact-l1"]),
    "gact-l2": ("ours", ["--preset", "gact-l2"]),
}
SHAPES = {"32x64": (32, 64), "16x512": (16, 512)}

FLOOR = """
import sys, time, torch
threads, tokens, length, n, m, layers, heads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
def best(run):
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
def linear(i, o):
    x, w, g = torch.randn(tokens, i), torch.randn(o, i), torch.randn(tokens, o)
    return best(lambda: (x @ w.t(), g @ w, g.t() @ x))
q, p = torch.randn(tokens // length * heads, length, n // heads), torch.randn(tokens // length * heads, length, length)
attention = best(lambda: [q @ q.transpose(1, 2) for _ in range(2)] + [p @ q for _ in range(4)])
print(layers * (linear(n, 3 * n) + linear(n, n) + linear(n, m) + linear(m, n) + attention))
"""


def floor(a, batch, length):
    """Seconds of a step's products: of linear layers and attention, forward and both gradients."""
    c = json.loads((pathlib.Path(a.model) / "config.json").read_text())
    shape = [a.threads, batch * length, length, c["hidden_size"], c["intermediate_size"],
             c["num_hidden_layers"], c["num_attention_heads"]]
    done = subprocess.run([a.python, "-c", FLOOR, *map(str, shape)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def write_texts(folder, rows, words):
    """SST-2's layout: every word is a token or more, so that `words` of them fill a text."""
    novel = (ROOT / "examples/data/pride-and-prejudice.txt").read_text().split()
    for name, count in (("train", rows), ("dev", 2)):
        texts = [" ".join(novel[i * words : (i + 1) * words]).replace('"', "") for i in range(count)]
        lines = ["sentence\tlabel", *(f"{text}\t{i % 2}" for i, text in enumerate(texts))]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def measure(a, side, flags, batch, length):
    """(peak bytes, seconds of a step), or None with a line that says why."""
    with tempfile.TemporaryDirectory(prefix="compact-encoder-") as name:
        folder = pathlib.Path(name)
        write_texts(folder, batch * a.steps, length)
        data = ["--task_name", "sst2", "--data_dir", name, "--max_seq_length", str(length)]
        data += ["--threads", str(a.threads)]
        if side == "hf":
            command = [a.python, str(ROOT / "bench/rivals/hf_sequence.py"), *data, "--model", a.model]
            command += ["--batch", str(batch), "--epochs", "1", "--allocator",
                        str(pathlib.Path(a.program).parent / "bench/rivals/libcounting_allocator.so")]
        else:
            command = [a.program, "train", "--task", "glue", *data, "--model_name_or_path", a.model]
            command += ["--per_device_train_batch_size", str(batch), "--max_steps", str(a.steps)]
            command += ["--output_dir", str(folder / "run"), "--cache_dir", str(folder / "cache")]
        code, out, errors = table.run(command + flags, a.limit)
        if code != 0:
            print(f"not measured ({code}): {errors[-400:]}", flush=True)
            return None
        if side == "hf":
            values = json.loads(out.strip().splitlines()[-1])
        else:
            values = json.loads((folder / "run/all_results.json").read_text())
    return values["memory/peak_bytes"], values["step_seconds"]


def section(name, of):
    """Lines of one shape's table."""
    peaks, floors = of["peak_bytes"], of["floor_seconds"]
    base, calls = statistics.median(floors), len(floors)
    rounds = sorted({len(all_) for all_ in of["step_seconds"].values()})
    seconds = {row: statistics.median(all_) for row, all_ in of["step_seconds"].items()}
    first = next(iter(peaks))
    lines = [f"## {name.replace('x', ' x ')} tokens; floor (matrix products alone) {base:.2f} s", "",
             f"{of['date']}, rounds: {' to '.join(map(str, (rounds[0], rounds[-1])[:len(rounds)]))}"
             + (f", in {calls} calls with floors of {min(floors):.2f} to {max(floors):.2f} s" if calls > 1 else ""), "",
             f"| | peak MiB | beside {first} | step s | beside {first} | beside the floor |", "|---|---|---|---|---|---|"]
    for row, peak in peaks.items():
        lines.append(f"| {row} | {peak / 2**20:.0f} | {peak / peaks[first]:.3f} | {seconds[row]:.2f} | "
                     f"{seconds[row] / seconds[first]:.2f} | {seconds[row] / base:.2f} |")
    return [*lines, ""]


def write(out, found, threads):
    lines = ["# Fine-tuning steps of an encoder beside Hugging Face's code", "",
             f"{measuring.device_name('cpu')}, {threads} threads, float32, AdamW; `bench/encoder.py`. Peak: highest "
             "allocated bytes of a step, weights, gradients and optimizer state included. On a CPU PyTorch's "
             "attention with dropout takes its plain path, which keeps scores, probabilities and masks; fused "
             "kernels of GPUs would not.", ""]
    for name in SHAPES:
        lines += section(name, found[name]) if name in found else []
    out.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--model", required=True, help="folder of a pretrained encoder")
    p.add_argument("--python", default=sys.executable, help="a Python with torch, transformers and peft")
    p.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    p.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=5, help="steps of a run; the first is not timed")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--limit", type=float, default=300, help="seconds a run may take")
    p.add_argument("--out", default=str(ROOT / "bench/results/encoder"),
                   help="PATH of PATH.md and PATH.json; shapes that are there and not run are kept")
    p.add_argument("--add", action="store_true", help="add the rounds to those that are there of a shape")
    a = p.parse_args()
    out = pathlib.Path(a.out)
    kept = out.with_suffix(".json")
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for name in a.shapes:
        of = found.get(name) if a.add else None
        of = of or {"floor_seconds": [], "peak_bytes": {}, "step_seconds": {}}
        of["date"] = str(datetime.date.today())
        of["floor_seconds"].append(floor(a, *SHAPES[name]))
        for r in range(a.rounds):
            for row in a.rows:
                values = measure(a, *ROWS[row], *SHAPES[name])
                if values is None:
                    continue
                peak, seconds = values
                of["peak_bytes"][row] = peak
                of["step_seconds"].setdefault(row, []).append(seconds)
                print(f"{name} round {r} {row}: {peak / 2**20:.0f} MiB, {seconds:.3f} s", flush=True)
        if of["peak_bytes"]:
            found[name] = of
    print("\n".join(write(out, found, a.threads)))


if __name__ == "__main__":
    main()
