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
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
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
        "Liger-Kernel, torch.compile": ("hf", ["--mode", "compile", "--liger"]),
        "off": ("compact", ["--preset", "off"]),
        "exact": ("compact", ["--preset", "exact"]),
        "every block recomputed": ("compact", ["--preset", "recompute"]),
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


def device_name(device):
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "cpu"


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


def ours(a, model, flags, folder):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(hf_config(model, a.block)))
    command = [a.program, "train", "--model_name_or_path", str(folder / "model")]
    command += ["--train_file", str(ROOT / "examples" / "data" / "pride-and-prejudice.txt")]
    command += ["--tokenizer", "bytes", "--validation_split", "0", "--cache_dir", str(folder / "cache")]
    command += ["--block_size", str(a.block), "--per_device_train_batch_size", str(a.batch)]
    command += ["--max_steps", str(a.steps), "--logging_steps", "1", "--learning_rate", "1e-3"]
    command += ["--dtype", TYPES[a.dtype], "--device", a.device, "--output_dir", str(folder / "run")]
    command += ["--threads", str(a.threads)] if a.device == "cpu" else []
    return command + flags


def script(a, name, model):
    """A script of rivals/ with the flags that all of them take."""
    command = [a.python, str(ROOT / "bench" / "rivals" / name), "--model", model]
    command += ["--dtype", a.dtype, "--device", a.device, "--threads", str(a.threads)]
    return command + ["--batch", str(a.batch), "--block", str(a.block), "--matmul", a.matmul]


def rival(a, model, flags):
    command = script(a, "hf_llama.py", model)
    command += ["--steps", str(max(1, a.steps - 2)), "--warmup", "2"]
    library = a.allocator or pathlib.Path(a.program).parent / "bench/rivals/libcounting_allocator.so"
    if a.device == "cpu" and pathlib.Path(library).exists():
        command += ["--allocator", str(library)]
    return command + flags


def run(command, limit):
    """(exit code or None at the limit, standard output, the end of what went wrong)"""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # so that a compiler's children end with it
    )
    try:
        out, errors = process.communicate(timeout=limit)
        return process.returncode, out, (errors or out).strip()[-2000:]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, "", ""


def measure(a, model, kind, flags, limit):
    with tempfile.TemporaryDirectory(prefix="compact-table-") as name:
        folder = pathlib.Path(name)
        if kind == "compact":
            command = ours(a, model, flags, folder)
        else:
            command = rival(a, model, flags) if kind == "hf" else script(a, "products.py", model)
        begin = time.monotonic()
        code, out, errors = run(command, limit)
        result = {"command": shlex.join(command).replace(name, "TMP").replace(str(ROOT) + "/", "")}
        result["seconds"] = round(time.monotonic() - begin, 1)
        if code is None:
            return {**result, "status": f"over {limit:.0f} s"}
        if code != 0:
            memory = re.search(r"out of memory|OutOfMemory|can't allocate", errors + out, re.IGNORECASE)
            status = "out of memory" if memory else f"failed ({code})"
            if kind != "compact" and code == UNAVAILABLE:
                status = errors.splitlines()[-1]  # "not run: ..."
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


def gib(n):
    return "" if n is None else f"{n / 2**30:.2f}"


def markdown(table, names):
    lines = [
        f"# Memory of a training step, {table['dtype']}",
        "",
        f"{table['date']}, {table['device']}, commit {table['commit']}; made by",
        f"`{table['command']}`.",
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


def write(path, text):
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def commit():
    try:
        found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:  # a machine without git
        return "unknown"
    return found.stdout.strip() or "unknown"


def main():
    a = arguments()
    unknown = [m for m in a.models if m not in MODELS]
    if unknown:
        sys.exit(f"no model {unknown[0]}; known: {', '.join(MODELS)}")
    a.program = str(pathlib.Path(a.program).resolve())
    if not pathlib.Path(a.program).exists():
        sys.exit(f"no program {a.program}: build it first")
    end = time.monotonic() + a.minutes * 60
    device = device_name(a.device)
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    size = "shapes" if a.shapes else f"{a.batch}x{a.block}"
    path = out / f"memory-{slug}-{size}-{a.dtype}.json"
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
    table.update(
        date=datetime.date.today().isoformat(),
        device=device,
        commit=commit(),
        command=shlex.join(["python", *sys.argv]).replace(str(ROOT) + "/", ""),
        dtype=a.dtype,
    )
    done = {(r["model"], r["row"]) for r in table["rows"] if final(r["status"])}
    failed = left = 0
    for model, batch, block in cases:
        a.batch, a.block = batch, block
        for name, (kind, flags) in rows.items():
            if a.rows and not any(part in name for part in a.rows):
                continue
            if (model, name) in done:
                continue
            remaining = end - time.monotonic()
            if remaining < 10:
                left += 1
                continue
            result = measure(a, model, kind, flags, min(a.limit, remaining))
            if result["status"].startswith("over") and remaining < a.limit:
                left += 1  # the end of this call, not of the row
            else:
                failed += not final(result["status"]) and not result["status"].startswith("not run")
            entry = {"model": model, "batch": batch, "block": block, "row": name, "date": table["date"], **result}
            table["rows"] = [r for r in table["rows"] if (r["model"], r["row"]) != (model, name)] + [entry]
            write(path, json.dumps(table, indent=1) + "\n")
            write(path.with_suffix(".md"), markdown(table, rows))
            speed = f"{result['tokens_per_second']:,.0f} tok/s" if result["status"] == "ok" else ""
            peak = gib(result.get("peak_bytes")) + " GiB" if result["status"] == "ok" else result["status"]
            print(f"{model:12} {name:44} {peak:>16} {speed:>16}  {result['seconds']:.0f} s", flush=True)
            if result["status"].startswith("failed"):
                print("   " + result["message"].replace("\n", "\n   "), flush=True)
    print(f"{path.with_suffix('.md')}: {len(table['rows'])} rows, {failed} failed, {left} left for another time")
    return 1 if failed else 75 if left else 0  # 75: time ran out


if __name__ == "__main__":
    sys.exit(main())
