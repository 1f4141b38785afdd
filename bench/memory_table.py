#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The memory table: what a training step needs under Hugging Face and under CompAct's presets.
Every configuration runs in a process of its own with a time limit; results are added to one JSON
file and one markdown table as they come, and what is there already is not run again. Exit code 1
where a row failed, 75 where time ran out.

    python bench/memory_table.py --program build-cuda/compact --device cuda        the paper's table
    python bench/memory_table.py --program build-cuda/compact --shapes             larger models, each at its own batch
    python bench/memory_table.py --program build/compact --device cpu --batch 16 --models llama-60m
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from measuring import (BUDGET, ROOT, end_with_children, exit_code, failure, gib, origin, origin_lines, program_at, run, shown, slug_of,
                       write)  # fmt: skip

sys.path.insert(0, str(ROOT / "bench" / "rivals"))
from hf_llama import MODELS, UNAVAILABLE  # noqa: E402

RANKS = {"n/2": "0.5", "n/4": "0.25", "n/8": "0.125"}
# Larger models at sequences x tokens a step: those at which others give tokens per second on one GPU
# (Qwen2.5 up to 1.5B, LLaMA 3.1), for 3B and 7B fewer sequences, so that 80 GB hold more of the rows.
SHAPES = {
    "llama-qwen-0.5b": (32, 1024),
    "llama-qwen-1.5b": (32, 1024),
    "llama-qwen-3b": (16, 1024),
    "llama-qwen-7b": (4, 1024),
    "llama-3.1-8b": (2, 8192),
}
FLOOR = "the products alone"
RIVAL = "Liger-Kernel, torch.compile"
SMALL_BUDGET = "auto within 10 GiB"  # of the model below, at the table's batch
SMALL_MODEL = "llama-350m"
WHOLE_GPU = "auto within 90 % of the GPU"  # of the shapes
LOSSLESS = ["off", "exact", "every block recomputed", SMALL_BUDGET, WHOLE_GPU]
# The rows that are measured first, of all models, where time is short.
FIRST = [FLOOR, "exact", "every block recomputed", RIVAL, "Hugging Face, eager", SMALL_BUDGET, WHOLE_GPU]
TYPES = {"bf16": "bfloat16", "f32": "float32"}


def row_commands():
    """Row name -> whose run it is, and its flags of compact train or of hf_llama.py."""
    rows = {
        FLOOR: ("floor", []),
        "Hugging Face, eager": ("hf", ["--mode", "eager"]),
        "Hugging Face, torch.compile": ("hf", ["--mode", "compile"]),
        "torch.compile, activation_memory_budget 0.5": ("hf", ["--mode", "compile", "--memory_budget", "0.5"]),
        "torch.compile, activation_memory_budget 0": ("hf", ["--mode", "compile", "--memory_budget", "0"]),
        "Hugging Face, checkpointing": ("hf", ["--mode", "checkpoint"]),
        "Liger-Kernel": ("hf", ["--mode", "eager", "--liger"]),
        RIVAL: ("hf", ["--mode", "compile", "--liger"]),
        "off": ("compact", ["--preset", "off"]),
        "exact": ("compact", ["--preset", "exact"]),
        "every block recomputed": ("compact", ["--preset", "recompute"]),
        SMALL_BUDGET: ("compact", ["--preset", "auto", "--budget", "10GiB"]),
        WHOLE_GPU: ("compact", ["--preset", "auto", "--budget", "GPU"]),
    }
    for preset in ("compact-paper", "compact"):
        for name, rank in RANKS.items():
            rows[f"{preset} {name}"] = ("compact", ["--preset", preset, "--rank", rank])
    for preset in ("gact-l1", "gact-l2"):
        rows[preset] = ("compact", ["--preset", preset])
    return rows


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default="build/compact", help="our program")
    p.add_argument("--python", default=sys.executable, help="a Python that has torch, for the rivals")
    p.add_argument("--allocator", help="libcounting_allocator.so (default: beside the program)")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--models", nargs="+", default=["llama-60m", "llama-130m", "llama-350m", "llama-1b"])
    p.add_argument("--shapes", action="store_true", help="larger models at batches of their own, instead of --models")
    p.add_argument("--rows", nargs="+", help="only rows whose name contains one of these")
    p.add_argument("--dtype", choices=TYPES, default="bf16")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--block", type=int, default=256)
    p.add_argument("--steps", type=int, default=6, help="of which the first warms up")
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--matmul", default="default", help="f32 products of the rivals on a CPU: default, onednn")
    p.add_argument("--limit", type=float, default=180, help="seconds a configuration may take")
    p.add_argument("--minutes", type=float, default=20, help="minutes for everything; then it stops")
    p.add_argument("--out", default=str(ROOT / "bench" / "results"))
    return p.parse_args()


def applies(a, name, model):
    """Whether a row is for this model."""
    if name == SMALL_BUDGET:
        return model == SMALL_MODEL
    return name != WHOLE_GPU or (a.shapes and a.device == "cuda")


def most_of_gpu():
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return f"{int(0.9 * int(found[0]))}MiB"


def hf_config(model, block):
    """The config.json of a model with its own vocabulary, whatever the tokenizer has."""
    known = MODELS[model]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **known,
        "max_position_embeddings": max(known["max_position_embeddings"], block),
    }


def step_flags(a, model, folder):
    """Flags of `compact plan` and `compact train`: a model of random weights, whose config.json goes into
    the folder, and its batch."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(hf_config(model, a.block)))
    flags = ["--model_name_or_path", folder / "model", "--tokenizer", "bytes", "--block_size", a.block]
    flags += ["--per_device_train_batch_size", a.batch, "--dtype", TYPES[a.dtype], "--device", a.device]
    return flags + (["--threads", a.threads] if a.device == "cpu" else [])


def run_flags(a, folder):
    """Further flags of `compact train`: bundled text, steps, and where the run goes."""
    return ["--train_file", ROOT / "examples" / "data" / "pride-and-prejudice.txt", "--validation_split", "0",
            "--max_steps", a.steps, "--logging_steps", "1", "--learning_rate", "1e-3",
            "--cache_dir", folder / "cache", "--output_dir", folder / "run"]  # fmt: skip


def ours(a, model, flags, folder):
    flags = [most_of_gpu() if flag == "GPU" else flag for flag in flags]
    return [a.program, "train", *step_flags(a, model, folder), *run_flags(a, folder), *flags]


def script(a, name, model):
    """A script of rivals/ with the flags that all of them take."""
    command = [a.python, ROOT / "bench" / "rivals" / name, "--model", model]
    command += ["--dtype", a.dtype, "--device", a.device, "--threads", a.threads]
    return command + ["--batch", a.batch, "--block", a.block, "--matmul", a.matmul]


def rival(a, model, flags):
    command = script(a, "hf_llama.py", model)
    command += ["--steps", max(1, a.steps - 2), "--warmup", "2"]
    library = a.allocator or pathlib.Path(a.program).parent / "bench/rivals/libcounting_allocator.so"
    if a.device == "cpu" and pathlib.Path(library).exists():
        command += ["--allocator", library]
    return command + flags


def measure(a, model, kind, flags, limit):
    with tempfile.TemporaryDirectory(prefix="compact-table-") as name:
        folder = pathlib.Path(name)
        if kind == "compact":
            command = ours(a, model, flags, folder)
        else:
            command = rival(a, model, flags) if kind == "hf" else script(a, "products.py", model)
        begin = time.monotonic()
        code, out, errors = run(command, limit)
        result = {"command": shown(str(word).replace(name, "TMP") for word in command)}
        result["seconds"] = round(time.monotonic() - begin, 1)
        if code != 0:
            status = failure(code, errors + out, limit).split(":")[0]
            if kind != "compact" and code in (UNAVAILABLE, BUDGET):  # the latter is ours alone
                status = errors.splitlines()[-1] if code == UNAVAILABLE else f"failed ({code})"  # "not run: ..."
            return {**result, "status": status, "message": errors[-600:]}
        if kind != "compact":
            found = json.loads(out.strip().splitlines()[-1])
            keys = ("peak_bytes", "reserved_bytes", "held_bytes", "tokens_per_second", "torch")
            return {**result, "status": "ok", **{k: found.get(k) for k in keys}}
        found = json.loads((folder / "run" / "all_results.json").read_text())
        keys = ("peak_bytes", "reserved_bytes", "held_bytes", "saved_bytes")
        result.update({k: found.get("memory/" + k) for k in keys})
        return {**result, "status": "ok", "tokens_per_second": found.get("tokens_per_second")}


def final(status):
    """Whether a row needs no other try; one that lacked something may have it the next time."""
    return status in ("ok", "out of memory")


def markdown(table, names):
    lines = [
        *origin_lines(f"Memory of a training step, {table['dtype']}", table),
        "Peak: the most bytes allocated in a step, with weights, gradients and optimizer state;"
        " reserved: what the caching allocator took for it; bound: the step's matrix products alone.",
    ]
    for model, batch, block in dict.fromkeys((r["model"], r["batch"], r["block"]) for r in table["rows"]):
        rows = {r["row"]: r for r in table["rows"] if r["model"] == model}
        base = rows.get("Hugging Face, eager", {}).get("peak_bytes") or rows.get("off", {}).get("peak_bytes")
        bound = rows.get(FLOOR, {}).get("tokens_per_second")
        lines += ["", f"## {model}, {batch} × {block} tokens", ""]
        lines += ["| | peak GiB | of the first | reserved GiB | tokens/s | of the bound |", "|---|---|---|---|---|---|"]
        for name in names:
            if name not in rows:
                continue
            r = rows[name]
            if r["status"] != "ok":
                lines.append(f"| {name} | {r['status']} | | | | |")
                continue
            peak = r.get("peak_bytes")
            part = f"{peak / base:.3f}" if base and peak else ""
            speed = r["tokens_per_second"]
            share = f"{speed / bound:.2f}" if bound else ""
            lines.append(f"| {name} | {gib(peak)} | {part} | {gib(r.get('reserved_bytes'))} | {speed:,.0f} | {share} |")
    return "\n".join(lines) + "\n"


def main():
    a = arguments()
    unknown = [m for m in a.models if m not in MODELS]
    if unknown:
        sys.exit(f"no model {unknown[0]}; known: {', '.join(MODELS)}")
    a.program = program_at(a.program)
    end_with_children()
    end = time.monotonic() + a.minutes * 60
    of = origin(a.device)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    size = "shapes" if a.shapes else f"{a.batch}x{a.block}"
    path = out / f"memory-{slug_of(of['device'])}-{size}-{a.dtype}.json"
    cases = [(model, a.batch, a.block) for model in a.models]
    if a.shapes:
        cases = [(model, batch, block) for model, (batch, block) in SHAPES.items()]
    table = {"rows": []}
    if path.exists():
        table = json.loads(path.read_text())
    for row in table["rows"] if not a.shapes else []:  # older files have one size for all
        row.setdefault("batch", a.batch)
        row.setdefault("block", a.block)
    rows = row_commands()
    table.update(of, dtype=a.dtype)
    done = {(r["model"], r["row"]) for r in table["rows"] if final(r["status"])}
    seen = {(r["model"], r["row"]) for r in table["rows"]}
    todo = [(case, name) for case in cases for name in rows
            if (not a.rows or any(part in name for part in a.rows))
            and applies(a, name, case[0]) and (case[0], name) not in done]  # fmt: skip
    # Rows that failed before come last.
    todo.sort(key=lambda t: ((t[0][0], t[1]) in seen, FIRST.index(t[1]) if t[1] in FIRST else len(FIRST)))
    failed = others = left = 0
    for (model, a.batch, a.block), name in todo:
        kind, flags = rows[name]
        tried = kind != "compact" and (model, name) in seen  # the page has it, whatever comes now
        remaining = end - time.monotonic()
        if remaining < 10:
            left += not tried
            continue
        result = measure(a, model, kind, flags, min(a.limit, remaining))
        if result["status"].startswith("over") and remaining < a.limit:
            left += not tried  # the end of this call, not of the row
            continue
        if not final(result["status"]):
            failed, others = failed + (kind == "compact"), others + (kind != "compact")
        entry = {"model": model, "batch": a.batch, "block": a.block, "row": name, "date": table["date"], **result}
        table["rows"] = [r for r in table["rows"] if (r["model"], r["row"]) != (model, name)] + [entry]
        write(path, json.dumps(table, indent=1) + "\n")
        write(path.with_suffix(".md"), markdown(table, rows))
        speed = f"{result['tokens_per_second']:,.0f} tok/s" if result["status"] == "ok" else ""
        peak = gib(result.get("peak_bytes")) + " GiB" if result["status"] == "ok" else result["status"]
        print(f"{model:12} {name:44} {peak:>16} {speed:>16}  {result['seconds']:.0f} s", flush=True)
        if result["status"].startswith("failed"):
            print("   " + result["message"].replace("\n", "\n   "), flush=True)
    print(f"{path.stem}.md: {len(table['rows'])} rows, {failed} failed, {others} of others did not run, {left} left for another time")
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
