#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planned peaks and added products of LLaMA-350M, 128 x 256 tokens, bf16, on a CUDA device: presets,
block checkpointing, and `auto` under budgets. Nothing is trained: the figures are the plan's.

    python bench/plan_table.py [--program build/compact]
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP = ["--model", "llama-350m", "--per_device_train_batch_size", "128", "--block_size", "256",
        "--dtype", "bfloat16", "--device", "cuda"]
PRESETS = {
    "off": ["--preset", "off"],
    "exact": ["--preset", "exact"],
    "compact n/4": ["--preset", "compact"],
    "compact n/8": ["--preset", "compact", "--rank", "0.125"],
    "compact-paper n/8": ["--preset", "compact-paper", "--rank", "0.125"],
    "every block recomputed": ["--preset", "recompute"],
}
BUDGETS = ["24GiB", "16GiB", "12GiB", "10GiB", "8GiB", "6GiB"]


def without_slots(results):
    return {name: r if isinstance(r, str) else {k: v for k, v in r.items() if k != "slots"}
            for name, r in results.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--out", default=str(ROOT / "bench/results/plan-350m"), help="PATH of PATH.md and PATH.json")
    a = p.parse_args()

    def plan(flags):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "plan.json"
            done = subprocess.run([a.program, "plan", *STEP, *flags, "--json", str(out)],
                                  capture_output=True, text=True)
            return json.loads(out.read_text()) if done.returncode == 0 else done.stderr.strip()

    curve = plan(["--preset", "off", "--pareto"])["pareto"]
    added = {row["name"]: row["added_flops"] for row in curve["presets"]}
    plain = None
    rows, results = [], {}
    for name, flags in [*PRESETS.items(),
                        *((f"auto, {b}", ["--preset", "auto", "--budget", b]) for b in BUDGETS)]:
        r = plan(flags)
        results[name] = r
        if isinstance(r, str):
            rows.append(f"| {name} | {r} | | | |")
            continue
        if plain is None:  # forward and backward products: 6 a weight and token, and attention's
            tokens, shape = 128 * 256, (1024, 2736, 24)
            n, m, layers = shape
            block = 2 * tokens * (4 * n * n + 3 * n * m) + 2 * tokens * 256 * n
            plain = 3 * (layers * block + 2 * tokens * n * 32000)
        flops = r.get("added_flops", added.get({"every block recomputed": "recompute"}.get(name, name), 0))
        rows.append(f"| {name} | {r['peak_bytes'] / 2**30:.2f} | {r['reserved_bytes'] / 2**30:.2f} | "
                    f"{r['peak_at']} | {100 * flops / plain:.1f} % |")
    paper = {"off": (.65, .65, 1.3, 7.0), "compact-paper n/4": (.65, .26, .52, 2.87)}
    parts = []
    for name, flags in {"off": ["--preset", "off"],
                        "compact-paper n/4": ["--preset", "compact-paper", "--rank", "0.25"]}.items():
        r = plan(flags)
        inputs = sum(s["stored_bytes"] for s in r["slots"]
                     if s["name"].startswith("layers.") and s["name"].endswith((".norm", "mlp.product")))
        ours = (r["weights_bytes"], r["gradients_bytes"], r["optimizer_bytes"], inputs)
        parts.append(f"| {name} | " + " | ".join(
            f"{b / 2**30:.2f} ({p})" for b, p in zip(ours, paper[name])) + " |")
    text = "\n".join([
        "# LLaMA-350M, planned", "",
        f"{datetime.date.today()}, `bench/plan_table.py`: 128 x 256 tokens, bf16, AdamW with bf16 moments, one "
        f"micro-batch a step. GiB. `auto` is lossless; its budget bounds what the caching allocator reserves. "
        f"Added products are beside the {plain * 1e-12:.1f} TFLOP of a step that rebuilds nothing.", "",
        "| | peak | reserved | the peak is in | products added |", "|---|---|---|---|---|", *rows, "",
        "By part, and in brackets what CompAct's paper gives (arXiv 2410.15352; it counts 350 million weights, "
        "the model has 368):", "",
        "| | weights | gradients | moments | inputs of q, k, v, gate, up, down |", "|---|---|---|---|---|",
        *parts, ""])
    out = pathlib.Path(a.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".md").write_text(text)
    out.with_suffix(".json").write_text(json.dumps(without_slots(results), indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
