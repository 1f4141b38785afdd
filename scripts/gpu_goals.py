#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of goals, goals.md, from the results that scripts/gpu_check.sh has so far: a row a goal, with
its figure and whether it is met. What no stage has measured says so. Keeps in goals.json how every
stage ended.

    python scripts/gpu_goals.py --results build-cuda/check/results --stage kernels passed
"""
import argparse
import json
import pathlib
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_bits  # noqa: E402
import memory_table  # noqa: E402
import plans  # noqa: E402
import roofline  # noqa: E402
from measuring import gib, origin, origin_lines, shown, slug_of, write  # noqa: E402

STAGES = ["build", "kernels", "sanitizer", "tests", "train", "roofline", "table", "shapes", "plans", "deterministic", "quality"]
BOUND = 0.55  # least part of the products' tokens a second
BOUND_MODELS = ["llama-qwen-0.5b", "llama-qwen-1.5b", "llama-qwen-3b", "llama-qwen-7b"]
LARGE_MODEL, LARGE_GPU = "llama-3.1-8b", "H200"
SMALL_GIB = 10
UNKNOWN = "not measured"


class Results:
    """JSON files of one device in a folder."""

    def __init__(self, folder, device):
        self.folder, self.device = folder, device

    def rows(self, name):
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text())["rows"] if path.exists() else []

    def page(self, name):
        return self.rows(f"{name}-{slug_of(self.device)}")

    def tables(self):
        """Rows of both memory tables; those of one model and batch were measured side by side."""
        batches = f"memory-{slug_of(self.device)}-128x256-bf16", f"memory-{slug_of(self.device)}-shapes-bf16"
        return [row for name in batches for row in self.rows(name)]


def answer(met):
    return "yes" if met else "no"


def of_stage(stages, name):
    found = stages.get(name, {}).get("status", "not run")
    return found, {"passed": "yes", "FAILED": "no"}.get(found, UNKNOWN)


def best(rows, key):
    """The row with most of `key` among our lossless rows that ran, or None."""
    ours = [r for r in rows if r["row"] in memory_table.LOSSLESS and r["status"] == "ok" and r.get(key)]
    return max(ours, key=lambda r: r[key], default=None)


def of_bound(rows, model):
    floor = [r for r in rows if r["model"] == model and r["row"] == memory_table.FLOOR and r["status"] == "ok"]
    row = best([r for r in rows if r["model"] == model], "tokens_per_second")
    if not floor or not row:
        return "", UNKNOWN
    part = row["tokens_per_second"] / floor[0]["tokens_per_second"]
    return f"{part:.0%} ({row['row']}, {row['tokens_per_second']:,.0f} tokens/s)", answer(part >= BOUND)


def less_and_no_slower(row, rival):
    return all(row[k] < rival[k] for k in ("peak_bytes", "reserved_bytes")) and row["tokens_per_second"] >= rival["tokens_per_second"]


def of_rival(rows, model):
    """The lossless row that takes least among those that are no slower, else the fastest."""
    rivals = [r for r in rows if r["model"] == model and r["row"] == memory_table.RIVAL]
    ours = [r for r in rows if r["model"] == model and r["row"] in memory_table.LOSSLESS and r["status"] == "ok"]
    if not rivals or not ours or rivals[0]["status"] not in ("ok", "out of memory"):
        return rivals[0]["status"] if rivals else "", UNKNOWN
    rival = rivals[0]
    if rival["status"] != "ok":
        fits = min(ours, key=lambda r: r["peak_bytes"])
        return f"{fits['row']} runs in {gib(fits['peak_bytes'])} GiB, the other is out of memory", "yes"
    good = [r for r in ours if r.get("reserved_bytes") and rival.get("reserved_bytes") and less_and_no_slower(r, rival)]
    row = min(good, key=lambda r: r["reserved_bytes"]) if good else best(ours, "tokens_per_second")
    figures = [f"{row[k] / rival[k]:.2f} of its {word}" for k, word in
               (("peak_bytes", "peak"), ("reserved_bytes", "reserved"), ("tokens_per_second", "speed"))
               if row.get(k) and rival.get(k)]  # fmt: skip
    return f"{row['row']}: {', '.join(figures)}", answer(good)


def of_small(rows):
    """The least that a lossless row reserves."""
    size = (memory_table.SMALL_MODEL, 128, 256)
    ours = [r for r in rows if (r["model"], r["batch"], r["block"]) == size and r["row"] in memory_table.LOSSLESS]
    if not ours:
        return "", UNKNOWN
    ran = [r for r in ours if r["status"] == "ok" and r.get("reserved_bytes")]
    if not ran:
        return ours[0]["status"], UNKNOWN
    row = min(ran, key=lambda r: r["reserved_bytes"])
    return f"{gib(row['reserved_bytes'])} GiB reserved ({row['row']})", answer(row["reserved_bytes"] <= SMALL_GIB * 2**30)


def of_large(rows, device):
    ours = [r for r in rows if r["model"] == LARGE_MODEL and r["row"] in memory_table.LOSSLESS]
    row = best(ours, "tokens_per_second")
    figure = f"{gib(row['peak_bytes'])} GiB, {row['tokens_per_second']:,.0f} tokens/s ({row['row']})" if row else ""
    if LARGE_GPU not in device:
        return f"{figure}; this is no {LARGE_GPU}".lstrip("; "), UNKNOWN
    tried = [r for r in ours if r["status"] in ("ok", "out of memory")]
    return (figure or "out of memory", answer(row)) if tried else ("", UNKNOWN)


def of_plans(rows, kind):
    known, far = plans.beyond(rows, kind)
    if not known:
        return "", UNKNOWN
    worst = max(known, key=lambda r: abs(plans.off(r, kind)))
    wrong = [r["name"] for r in rows if r["status"] not in ("ok", "out of memory")]
    text = f"worst {plans.off(worst, kind):+.2%} ({worst['name']}), {len(far)} of {len(known)} beyond"
    return text + (f"; not run: {', '.join(wrong)}" if wrong else ""), answer(not far and not wrong)


def of_bits(rows, status):
    if not rows:
        return "", UNKNOWN
    by_name = {r["name"]: r for r in rows}
    equal = sum(gpu_bits.same(r, by_name.get(r["as"])) for r in rows if r["status"] == "ok")
    met = UNKNOWN if status not in ("passed", "FAILED") else answer(equal == len(rows))
    return f"{equal} of {len(rows)} runs" + (" so far" if met == UNKNOWN else ""), met


def of_kernels(rows):
    kernels = [k for row in rows for k in row.get("kernels", [])]
    if not kernels:
        return "", UNKNOWN
    reached = sum(roofline.share(k) >= roofline.GOAL for k in kernels)
    least = min(kernels, key=roofline.share)
    text = f"{reached} of {len(kernels)}; least: {least['kernel']} {least['type']}, {roofline.share(least):.0%}"
    return text, answer(reached == len(kernels))


def goals(results, stages):
    """(goal, figure, whether it is met)"""
    tables = results.tables()
    shapes = memory_table.SHAPES
    models = list(dict.fromkeys([*shapes, *(r["model"] for r in tables if r["row"] == memory_table.RIVAL)]))
    found = [
        ("kernels give what the reference gives", *of_stage(stages, "kernels")),
        ("memcheck, racecheck, synccheck and initcheck find nothing in them", *of_stage(stages, "sanitizer")),
        ("tests that a GPU changes pass", *of_stage(stages, "tests")),
        ("every task trains as on the CPU", *of_stage(stages, "train")),
        (f"every kernel has {roofline.GOAL:.0%} of a copy's bandwidth on large tensors (our own goal)",
         *of_kernels(results.page("roofline"))),
    ]  # fmt: skip
    for model in BOUND_MODELS:
        batch, block = shapes[model]
        found.append((f"{model}, {batch} × {block}: at least {BOUND:.0%} of the product bound", *of_bound(tables, model)))
    for model in models:
        found.append((f"{model}: less memory than {memory_table.RIVAL}, no slower", *of_rival(tables, model)))
    found.append((f"{memory_table.SMALL_MODEL}, 128 × 256, in {SMALL_GIB} GiB", *of_small(tables)))
    batch, block = shapes[LARGE_MODEL]
    found.append((f"{LARGE_MODEL}, {batch} × {block}, on one {LARGE_GPU}", *of_large(tables, results.device)))
    for kind in ("reserved", "peak"):
        found.append((f"planned {kind} bytes within {plans.GOAL:.0%}", *of_plans(results.page("plans"), kind)))
    bits = of_bits(results.page("deterministic"), stages.get("deterministic", {}).get("status"))
    return [*found, ("every assignment of keep and recompute gives the same bits", *bits)]


def page(of, found, stages, device):
    lines = origin_lines("Goals on a GPU", of)
    lines += ["The script was tried on a CPU: these are no figures of a GPU.", ""] * (device == "cpu")
    counts = {word: sum(met == word for _, _, met in found) for word in ("yes", "no", UNKNOWN)}
    lines += [f"Met: {counts['yes']}, not met: {counts['no']}, {UNKNOWN}: {counts[UNKNOWN]}. Figures are from the pages beside this one, of",
              "our lossless rows; memory is less where both peak and reserved bytes are."]  # fmt: skip
    lines += ["", "| goal | figure | met |", "|---|---|---|"]
    lines += [f"| {goal} | {figure} | {met} |" for goal, figure, met in found]
    lines += ["", "| stage | how it ended | when |", "|---|---|---|"]
    return lines + [f"| {n} | {stages.get(n, {}).get('status', 'not run')} | {stages.get(n, {}).get('date', '')} |" for n in STAGES]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--results", type=pathlib.Path, required=True, help="the folder of the stages' JSON files")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--stage", nargs=2, metavar=("NAME", "HOW"), help="how a stage has just ended")
    p.add_argument("--command", help="what made the results (default: this command)")
    a = p.parse_args()
    of = origin(a.device)
    of["command"] = shown(shlex.split(a.command)) if a.command else of["command"]
    path = a.results / "goals.json"
    stages = json.loads(path.read_text())["stages"] if path.exists() else {}
    if a.stage:
        name, how = a.stage
        if name not in STAGES:
            sys.exit(f"--stage must be one of {', '.join(STAGES)}, is {name}")
        stages[name] = {"status": how, "date": of["date"]}
    found = goals(Results(a.results, of["device"]), stages)
    rows = [dict(zip(("goal", "figure", "met"), row)) for row in found]
    write(path, json.dumps({**of, "stages": stages, "rows": rows}, indent=1) + "\n")
    write(path.with_suffix(".md"), "\n".join([*page(of, found, stages, a.device), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
