#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planned beside measured bytes: `compact plan --json` and some steps of `compact train` with the same
flags, for several models and presets, as a page and JSON. On a GPU the peak and what the caching
allocator reserves, on a CPU the peak. What is there of the same program is not run again. Exit code 1
where a run failed, 75 where time ran out.

    python bench/plans.py --program build-cuda/compact --device cuda
"""
import argparse
import json
import pathlib
import sys
import tempfile

from measuring import ROOT, Rows, end_with_children, exit_code, failure, hash_of, origin_lines, program_at, run
from memory_table import run_flags, step_flags

sys.path.insert(0, str(ROOT / "scripts"))
from gpu_data import write_images  # noqa: E402

GOAL = 0.02  # most that a measured figure may be off a planned one
LLAMA = ["off", "exact", "recompute", "compact", "gact-l1"]
RESNET = ["off", "exact", "pool"]
IMAGES = 400
# Models at samples x tokens, or pixels, a step, and their presets; text after a blank: more flags.
CASES = {
    "cuda": [
        ("llama-60m", 128, 256, LLAMA),
        ("llama-350m", 128, 256, [*LLAMA[:4], "auto --budget 10GiB"]),
        ("llama-1b", 32, 256, ["exact", "compact", "compact --rank 0.125"]),
        ("llama-qwen-1.5b", 8, 1024, ["off", "exact", "recompute"]),
        ("resnet50", 64, 224, RESNET),
    ],
    "cpu": [
        ("llama-tiny", 4, 64, [*LLAMA, "auto --budget 160MiB"]),
        ("resnet20", 16, 32, RESNET),
    ],
}  # fmt: skip
DTYPES = {"cuda": "bf16", "cpu": "f32"}


def cases(device):
    """Row name -> model, batch, block, flags of its preset."""
    found = {}
    for model, batch, block, presets in CASES[device]:
        for preset in presets:
            flags = f"--preset {preset}".split()
            found[f"{model}, {batch} × {block}, {preset}"] = (model, batch, block, flags)
    return found


def image_flags(a, model, folder):
    """As step_flags and run_flags, of networks for images."""
    images = folder / "images.bin"
    write_images(images, IMAGES)
    step = ["--task", "image-classification", "--model", model, "--image_size", a.block, "--train_file", images, "--optim", "sgd"]
    step += ["--per_device_train_batch_size", a.batch, "--device", a.device]
    step += ["--dtype", "bfloat16"] if a.device == "cuda" else ["--threads", a.threads]
    return step, ["--validation_split", "0.1", "--max_steps", a.steps, "--cache_dir", folder / "cache", "--output_dir", folder / "run"]


def compare(a, case, limit):
    model, a.batch, a.block, preset = case
    with tempfile.TemporaryDirectory(prefix="compact-plans-") as name:
        folder = pathlib.Path(name)
        if model.startswith("resnet"):
            step, more = image_flags(a, model, folder)
        else:
            step, more = step_flags(a, model, folder), run_flags(a, folder)
        for command in (["plan", *step, *preset, "--json", folder / "plan.json"], ["train", *step, *preset, *more]):
            code, _, errors = run([a.program, *command], limit)
            if code != 0:
                return {"status": failure(code, errors.replace(name, "TMP"), limit)}
        plan = json.loads((folder / "plan.json").read_text())
        found = json.loads((folder / "run" / "all_results.json").read_text())
        row = {"status": "ok"}
        for kind in ("peak", "reserved"):
            row["planned_" + kind] = plan.get(kind + "_bytes")
            row["measured_" + kind] = found.get(f"memory/{kind}_bytes")
        return row


def off(row, kind):
    """How far a measured figure is from the plan, as a part of the plan; None without both."""
    planned, measured = row.get("planned_" + kind), row.get("measured_" + kind)
    return measured / planned - 1 if planned and measured else None


def beyond(rows, kind):
    """(rows that have both figures, those of them that are off by more than the goal)"""
    known = [r for r in rows if off(r, kind) is not None]
    return known, [r for r in known if abs(off(r, kind)) > GOAL]


def page(of, rows):
    lines = origin_lines("Plans beside what was measured", of)
    lines += ["MiB of a step with weights, gradients and optimizer state. Peak: the most bytes allocated; reserved: what the caching",
              f"allocator took, on a GPU only. `off`: measured beside planned; the goal is at most {GOAL:.0%}."]  # fmt: skip
    lines += ["", "| model, batch, preset | peak, planned | measured | off | reserved, planned | measured | off |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        if row["status"] != "ok":
            lines.append(f"| {row['name']} | {row['status']} | | | | | |")
            continue
        cells = []
        for kind in ("peak", "reserved"):
            for way in ("planned_", "measured_"):
                bytes_ = row[way + kind]
                cells.append("" if bytes_ is None else f"{bytes_ / 2**20:,.1f}")
            cells.append("" if off(row, kind) is None else f"{off(row, kind):+.2%}")
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default="build/compact")
    p.add_argument("--device", choices=CASES, default="cuda")
    p.add_argument("--rows", nargs="+", help="only rows whose name contains one of these")
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--limit", type=float, default=150, help="seconds that a plan, or a run, may take")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    p.add_argument("--out", default=str(ROOT / "bench/results"))
    a = p.parse_args()
    a.program, a.dtype = program_at(a.program), DTYPES[a.device]
    end_with_children()
    wanted = {n: c for n, c in cases(a.device).items() if not a.rows or any(part in n for part in a.rows)}
    rows = Rows(a.out, "plans", hash_of(a.program, a.steps), a.device, page)
    failed, left = rows.each(wanted, lambda name, limit: compare(a, wanted[name], limit), a.minutes, a.limit)
    peaks, far_peaks = beyond(rows.rows.values(), "peak")
    reserved, far_reserved = beyond(rows.rows.values(), "reserved")
    print(f"off by more than {GOAL:.0%}: {len(far_peaks)} of {len(peaks)} peaks, {len(far_reserved)} of {len(reserved)} reserved; "
          f"{failed} rows failed, {left} left for another time")  # fmt: skip
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
