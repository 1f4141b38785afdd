#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of goals of scripts/gpu_check.py, from the results that there are so far: a row a goal, with
its figure and whether it is met, and how every stage ended. What no stage has measured says so."""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
for folder in ("bench", "bench/rivals", "scripts"):
    sys.path.insert(0, str(ROOT / folder))
import gpu_bits  # noqa: E402
import memory_table  # noqa: E402
import plans  # noqa: E402
import products  # noqa: E402
import roofline  # noqa: E402
from hf_llama import MODELS  # noqa: E402
from measuring import gib, origin, origin_lines, slug_of, write  # noqa: E402

# Parts of the data sheet's products that llm.q reaches on one H100 in bf16 with these shapes (its
# benchmarks/H100x1.md: Qwen2.5, steps 3 to 5).
REACHED = {"llama-qwen-0.5b": 0.468, "llama-qwen-1.5b": 0.569, "llama-qwen-3b": 0.593, "llama-qwen-7b": 0.602}
LARGE_MODEL, LARGE_GPU = "llama-3.1-8b", "H200"
SMALL_GIB = 10
UNKNOWN = "not measured"
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


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
        """Rows of all memory tables; those of one model and batch were measured side by side."""
        found = sorted(self.folder.glob(f"memory-{slug_of(self.device)}-*-bf16.json"))
        return [row for path in found for row in self.rows(path.stem)]


def answer(met):
    return "yes" if met else "no"


def of_stage(stages, name):
    found = stages.get(name, {}).get("status", "not run")
    return found, {"passed": "yes", "FAILED": "no"}.get(found, UNKNOWN)


def best(rows, key):
    """The row with most of `key` among our lossless rows that ran, or None."""
    ours = [r for r in rows if r["row"] in memory_table.LOSSLESS and r["status"] == "ok" and r.get(key)]
    return max(ours, key=lambda r: r[key], default=None)


def peak_of(program, device):
    """Products a second of the data sheet of a GPU, in bf16; None where it is not in the program's list."""
    text = subprocess.run([program, "list", "gpus"], capture_output=True, text=True).stdout
    for words, tera in re.findall(r"^ *\S+ +(.+?): .*products at ([\d.]+) TFLOP/s in bf16", text, re.MULTILINE):
        if re.search(rf"(?<!\w){re.escape(words)}(?!\w)", device):
            return 1e12 * float(tera)
    return None


def of_peak(rows, model, peak):
    """The part of the data sheet's products that the fastest lossless row makes use of, and beside it the
    part of those that cuBLAS reaches for the same products alone."""
    row = best([r for r in rows if r["model"] == model], "tokens_per_second")
    if not row or not peak:
        return "", UNKNOWN
    speed = row["tokens_per_second"]
    part = speed * products.operations(MODELS[model], row["block"]) / peak
    floor = [r for r in rows if r["model"] == model and r["row"] == memory_table.FLOOR and r["status"] == "ok"]
    beside = f", {speed / floor[0]['tokens_per_second']:.0%} of cuBLAS's products alone" if floor else ""
    return f"{part:.1%} of {peak * 1e-12:,.0f} TFLOP/s{beside} ({row['row']}, {speed:,.0f} tokens/s)", answer(part >= REACHED[model])


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


def of_rows(rows, part):
    """How many of the rows whose name contains `part` are as they should be, and which are not."""
    chosen = [r for r in rows if part in r["name"]]
    good = sum(r["status"] == "ok" for r in chosen)
    wrong = [f"{r['name']} ({r['status'][:80]})" for r in chosen if r["status"] != "ok"]
    return f"{good} of {len(chosen)} rows" + "".join(f"; not: {w}" for w in wrong), answer(good == len(chosen)) if chosen else UNKNOWN


def of_python_plans(rows):
    chosen = [r for r in rows if r["name"].endswith("plan") and r["status"] == "ok"]
    far = [r["name"] for r in chosen if "beyond" in r["found"]]
    return "; ".join(f"{r['name']}: {r['found']}" for r in chosen), answer(not far) if chosen else UNKNOWN


def goals(results, stages, program):
    """(goal, figure, whether it is met)"""
    tables, tasks, python = results.tables(), results.page("tasks"), results.page("python")
    shapes, peak = memory_table.SHAPES, peak_of(program, results.device)
    models = list(dict.fromkeys([*shapes, *(r["model"] for r in tables if r["row"] == memory_table.RIVAL)]))
    sanitized = [of_stage(stages, tool) for tool in SANITIZERS]
    found = [
        ("kernels give what the reference gives", *of_stage(stages, "kernels")),
        ("every task trains, evaluates and generates as on the CPU", *of_rows([r for r in tasks if "same bits" not in r["name"]], "")),
        ("steps from a CUDA graph and resumed runs give the same bits", *of_rows(tasks, "same bits")),
        ("Hugging Face's models under the Python package have the losses that they have without it",
         *of_rows([r for r in python if not r["name"].endswith("plan")], "")),
        ("the package's tests pass with their tensors on a GPU", *of_stage(stages, "package")),
        ("any network has the same gradients under every budget", *of_stage(stages, "budgets")),
        (f"plans of the Python package within {plans.GOAL:.0%}", *of_python_plans(python)),
        (f"every kernel has {roofline.GOAL:.0%} of a copy's bandwidth on large tensors (our own goal)",
         *of_kernels(results.page("roofline"))),
    ]  # fmt: skip
    for model, part in REACHED.items():
        batch, block = shapes[model]
        found.append((f"{model}, {batch} × {block}: at least {part:.1%} of the data sheet's products, as llm.q on an H100",
                      *of_peak(tables, model, peak)))  # fmt: skip
    for model in models:
        found.append((f"{model}: less memory than {memory_table.RIVAL}, no slower", *of_rival(tables, model)))
    found.append((f"{memory_table.SMALL_MODEL}, 128 × 256, in {SMALL_GIB} GiB", *of_small(tables)))
    batch, block = shapes[LARGE_MODEL]
    found.append((f"{LARGE_MODEL}, {batch} × {block}, on one {LARGE_GPU}", *of_large(tables, results.device)))
    for kind in ("reserved", "peak"):
        found.append((f"planned {kind} bytes within {plans.GOAL:.0%}", *of_plans(results.page("plans"), kind)))
    bits = of_bits(results.page("deterministic"), stages.get("bits", {}).get("status"))
    found.append(("every assignment of keep and recompute gives the same bits", *bits))
    worst = "no" if ("FAILED", "no") in sanitized else "yes" if all(met == "yes" for _, met in sanitized) else UNKNOWN
    return [*found, (f"{', '.join(SANITIZERS)} find nothing in the kernels", ", ".join(how for how, _ in sanitized), worst)]


def page(of, found, stages, device):
    lines = origin_lines("Goals on a GPU", of)
    lines += ["The script was tried on a CPU: these are no figures of a GPU.", ""] * (device == "cpu")
    counts = {word: sum(met == word for _, _, met in found) for word in ("yes", "no", UNKNOWN)}
    lines += [f"Met: {counts['yes']}, not met: {counts['no']}, {UNKNOWN}: {counts[UNKNOWN]}. Figures are from the pages beside this one, of",
              "our lossless rows; memory is less where both peak and reserved bytes are."]  # fmt: skip
    lines += ["", "| goal | figure | met |", "|---|---|---|"]
    lines += [f"| {goal} | {figure} | {met} |" for goal, figure, met in found]
    lines += ["", "| stage | how it ended | seconds | when | its last line |", "|---|---|---|---|---|"]
    return lines + [f"| {n} | {s['status']} | {s['seconds']} | {s['date']} | {s['last'].replace('|', '/')} |" for n, s in stages.items()]


def write_page(folder, program, device, stages, command):
    """goals.md and goals.json in the folder of results; returns the page's text."""
    of = {**origin(device), "command": command}
    found = goals(Results(folder, of["device"]), stages, program)
    rows = [dict(zip(("goal", "figure", "met"), row)) for row in found]
    write(folder / "goals.json", json.dumps({**of, "rows": rows}, indent=1) + "\n")
    text = "\n".join([*page(of, found, stages, device), ""])
    write(folder / "goals.md", text)
    return text
