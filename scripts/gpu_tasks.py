#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains every task for some steps on a device under some presets, each with small made data, beside
the same on the CPU: the first step's losses must agree, all must be finite. Beside them what must
give the same bits (steps from a CUDA graph, a resumed run), evaluation and generation. A page and
JSON; what is there of the same program is not run again.

    python scripts/gpu_tasks.py --program gpu-pack/bin/compact --device cuda --folder gpu-pack/work
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import sys
import tempfile

from gpu_data import ROOT, make_data, tasks

sys.path.insert(0, str(ROOT / "bench"))
from measuring import Rows, end_with_children, exit_code, failure, hash_of, origin_lines, run  # noqa: E402

# Random bits of attention's dropout are other ones on a GPU.
DROPOUT = "--dropout=0.1"
TEXTS = ["language-modeling", "prompt-completion", "text-classification", "glue"]
LANGUAGE = TEXTS[:1]
BF16, SAME = "--dtype=bfloat16", "--deterministic"
# Beside the CPU: flags of compact train, and the tasks; None: all.
BESIDE_CPU = {
    "exact": (["--preset=exact"], None),
    "recompute": (["--preset=recompute"], TEXTS),
    "tiled": (["--preset=tiled", "--set=slot role:{norm,gate_up,gate,product} = tile:tokens=50"], LANGUAGE),
    "compact": (["--preset=compact"], TEXTS),
    "gact-l1": (["--preset=gact-l1"], None),
    "gact-l3": (["--preset=gact-l3"], LANGUAGE),  # which offloads
    "pool": (["--preset=pool"], ["image-classification"]),
    "exact, dropout": (["--preset=exact", DROPOUT], ["text-classification"]),
    **{f"{preset}, bf16": ([f"--preset={preset}", BF16], LANGUAGE) for preset in ("exact", "recompute", "compact", "gact-l3")},
}
# Two runs of the same bits, of the first task: flags of both, and of the second alone; none: it is
# resumed from the first's checkpoint.
SAME_BITS = {
    "exact, CUDA graph": (["--preset=exact", SAME], ["--cuda_graph=true"]),
    "exact, CUDA graph, bf16": (["--preset=exact", SAME, BF16], ["--cuda_graph=true"]),
    "exact and recompute, bf16": (["--preset=exact", SAME, BF16], ["--preset=recompute"]),
    "exact, weights on the host": (["--preset=exact", SAME], ["--set=weight * = offload"]),
    "exact, weights on the host, bf16": (["--preset=exact", SAME, BF16], ["--set=weight * = offload"]),
    "exact, moments on the host": (["--preset=exact", SAME], ["--set=moment * = f32+offload"]),
    "exact, resumed": (["--preset=exact", SAME, "--save_steps=3"], []),
    "gact-l3, resumed, bf16": (["--preset=gact-l3", SAME, BF16, "--save_steps=3"], []),
}
TRAINED = ("eval", "generate")  # with what a run has left
PRESETS = [*SAME_BITS, *TRAINED, *BESIDE_CPU]
TOLERANCE, WIDER = 0.01, {BF16: 0.02, DROPOUT: 0.1}  # of a loss beside the CPU's


class Failed(Exception):
    """A command did not end well; its text is a row's status."""


def merged(flags, others):
    """Flags in place of those of the same name."""
    return list({flag.split("=")[0]: flag for flag in [*flags, *others]}.values())


def called(a, command):
    """Standard output of the program."""
    code, out, errors = run([a.program, *command], a.limit)
    if code != 0:
        raise Failed(failure(code, errors, a.limit))
    return out


def train(a, task, flags, device, folder):
    """The losses of a run that leaves its model in `folder`; it may be one that is resumed."""
    if device == "cpu":
        flags = [f for f in flags if not f.startswith("--cuda_graph")]
    said = called(a, ["train", f"--task={task}", *merged(tasks(a.folder / "data")[task], flags), f"--device={device}", f"--max_steps={a.steps}",
                      "--logging_steps=1", "--per_device_train_batch_size=8", "--seed=1", "--threads=2",
                      f"--cache_dir={a.folder / 'cache'}", f"--output_dir={folder}"])  # fmt: skip
    if "--cuda_graph=true" in flags and f"replayed {a.steps - 2} of" not in said:
        raise Failed("no step was replayed from a graph")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    steps = 1 if any(f.startswith("--resume_from_checkpoint") for f in flags) else a.steps
    if len(losses) < steps or not all(math.isfinite(x) for x in losses):
        raise Failed("losses missing or not finite")
    return losses


def on_both(a, work):
    """The results of `work` for the device and for the CPU, at the same time."""
    if a.device == "cpu":
        return [work("cpu")] * 2
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(work, (a.device, "cpu")))


def apart(here, cpu, flags=()):
    """Throws where a loss is too far from the CPU's."""
    off = abs(here - cpu) / max(abs(cpu), 1e-9)
    if off > max([TOLERANCE, *(WIDER[flag] for flag in flags if flag in WIDER)]):
        raise Failed(f"a loss is {off:.1%} from the CPU's")


def beside_cpu(a, task, flags, folder):
    here, cpu = on_both(a, lambda device: train(a, task, flags, device, folder / device))
    apart(here[0], cpu[0], flags)
    return f"{here[0]:.4f} {here[-1]:.4f}", f"{cpu[0]:.4f} {cpu[-1]:.4f}"


def same_bits(a, flags, more, folder):
    found = []
    resumed = [f"--resume_from_checkpoint={folder / 'one/checkpoint-3'}"]
    for name in ("one", "other"):
        if name == "other":
            flags = merged(flags, more or resumed)
        losses = train(a, LANGUAGE[0], flags, a.device, folder / name)
        found.append((f"{losses[-1]:.4f}", hash_of(folder / name / "model.safetensors")[:12]))
    if found[0] != found[1]:
        raise Failed(f"other bits: {' '.join(found[0])} and {' '.join(found[1])}")
    return tuple(" ".join(pair) for pair in found)


def trained(a, name, folder):
    train(a, LANGUAGE[0], ["--preset=exact"], a.device, folder / "model")
    model = f"--model_name_or_path={folder / 'model'}"

    def evaluated(device):
        out = folder / f"{device}.json"
        called(a, ["eval", model, f"--validation_file={ROOT / 'examples/data/pride-and-prejudice.txt'}", "--max_eval_samples=32",
                   "--block_size=64", f"--cache_dir={a.folder / 'cache'}", f"--device={device}", f"--json={out}"])  # fmt: skip
        return json.loads(out.read_text())["eval_loss"]

    def generated(device):
        return called(a, ["generate", model, "--prompt=It is a truth", "--temperature=0", "--max_new_tokens=32", f"--device={device}"])

    here, cpu = on_both(a, evaluated if name == "eval" else generated)
    if name == "eval":
        apart(here, cpu)
        return f"{here:.4f}", f"{cpu:.4f}"
    if not here.strip() or here != cpu:
        raise Failed(f"other text than on the CPU: {here.strip()!r}, {cpu.strip()!r}")
    return repr(here.strip()[:30]), "the same"


def wanted(a):
    """Row name -> what makes it in a folder."""
    found = {}
    for way in a.presets:
        if way in BESIDE_CPU:
            flags, of = BESIDE_CPU[way]
            for task in of or tasks(a.folder / "data"):
                found[f"{task}, {way}"] = task, lambda f, task=task, flags=flags: beside_cpu(a, task, flags, f)
        elif way in SAME_BITS:
            found[f"same bits: {way}"] = LANGUAGE[0], lambda f, both=SAME_BITS[way]: same_bits(a, *both, f)
        else:
            found[way] = LANGUAGE[0], lambda f, way=way: trained(a, way, f)
    return {name: make for name, (task, make) in found.items() if not a.tasks or task in a.tasks}


def page(of, rows):
    lines = origin_lines("Every task for some steps", of)
    lines += ["First and last loss here and on the CPU, of which the first must agree; `same bits`: last loss and the beginning of the",
              "SHA-256 of the weights of both runs. On a CPU no CUDA graph is used."]  # fmt: skip
    lines += ["", "| run | here | beside | |", "|---|---|---|---|"]
    return lines + [f"| {r['name']} | {r.get('here', '')} | {r.get('beside', '')} | {r['status']} |" for r in rows]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "bin/compact"))
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "work", help="data")
    p.add_argument("--tasks", nargs="+", help="only these")
    p.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS, metavar="WAY")
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--limit", type=float, default=60, help="seconds a run may take")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    p.add_argument("--out", help="default: the folder")
    a = p.parse_args()
    a.folder, a.program = a.folder.resolve(), str(pathlib.Path(a.program).resolve())
    end_with_children()
    if not (a.folder / "data/prompts.jsonl").exists():  # the last that is written
        make_data(a.folder / "data")
    makes = wanted(a)

    def make(name, limit):
        a.limit = limit
        with tempfile.TemporaryDirectory(prefix="compact-tasks-") as folder:
            try:
                here, beside = makes[name](pathlib.Path(folder))
            except Failed as e:
                return {"status": str(e).replace(folder, "TMP")}
            return {"status": "ok", "here": here, "beside": beside}

    rows = Rows(a.out or a.folder, "tasks", hash_of(pathlib.Path(a.program), pathlib.Path(__file__), a.steps), a.device, page)
    failed, left = rows.each(makes, make, a.minutes, a.limit, workers=1 if a.device == "cpu" else 4)  # small models
    print(f"{len(makes) - failed - left} runs as they should be, {failed} not, {left} left for another time")
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
