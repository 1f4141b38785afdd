#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and measures everything that a GPU can say, on a machine with an NVIDIA GPU, a driver and a
Python with torch, without network, compilers or git. Runs in the folder that gpu-pack.tar.xz
(scripts/gpu_pack.sh) is unpacked to. May be stopped and called again: it goes on with what is not
done, what was cut off last, until it says that everything passed.

    python3 -m tarfile -e gpu-pack.tar.xz . && python3 gpu-pack/scripts/gpu_check.py --minutes 9 --out results

Leaves in --out one page, goals.md (scripts/gpu_goals.py), and one archive, results.tar.xz, with all
pages, figures and logs, both written again after every stage. Exit code 0 where every stage that ran
passed; 1 where one failed; 75 where time ran out.
"""
import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.util
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import gpu_goals  # noqa: E402
from gpu_data import make_data  # noqa: E402
from measuring import OUT_OF_TIME, device_name, end_with_children, hash_of, write  # noqa: E402

BIN, WORK, RESULTS = ROOT / "bin", ROOT / "work", ROOT / "results"
SKIPPED = 77
RUNNING = []  # processes of stages
BESIDE = 6  # stages at a time, of those that measure no time
# The tests of the package whose results could differ between a GPU and a CPU.
TESTS = {
    "layers": ("apply", "families", "inside", "loss", "masks"),
    "optimizers": ("optim", "optim_state", "release"),
    "projected_weights": ("projected",),
    "any_network": ("rebuilt_cases", "rebuilt_networks", "saved_tensors", "saved_tensors_attention", "saved_tensors_budget", "saved_tensors_held",
                    "saved_tensors_operations", "saved_tensors_use"),
}  # fmt: skip


@dataclasses.dataclass
class Stage:
    """A stage of the check: commands, and the seconds that one call may take for it."""

    seconds: int
    commands: list
    own_limit: bool = True  # whether the last command takes --minutes and goes on the next time
    timed: bool = True  # whether it measures times, with nothing beside it


def stages(a):
    """Name -> stage, in their order: what is short and says most comes first."""

    def script(path, *flags, rows=False, program="compact"):
        chosen = ["--rows", *a.rows.split(",")] if rows and a.rows else []
        return [[sys.executable, ROOT / path, "--program", BIN / program, "--device", a.device, *flags, *chosen]]

    def table(*flags):
        return script("bench/memory_table.py", "--out", RESULTS, "--limit", a.limit, "--python", sys.executable, *flags, rows=True)

    small = a.device == "cpu"  # to try the script
    first, others, shapes = ["llama-350m"], ["llama-60m", "llama-130m", "llama-1b"], ["--shapes"]
    if small:
        size = ["--batch", 4, "--block", 64, "--steps", 3]
        first, others, shapes = ["llama-tiny", *size], ["llama-mini", *size], ["--models", "llama-mini", "--batch", 2, "--block", 128, "--steps", 3]
    doctor = [[BIN / "kernel_check", a.device], [BIN / "compact", "doctor"]]
    roofline = script("bench/roofline.py", "--out", RESULTS, *(["--seconds", 0.01] if small else []), program="bench_kernels")
    tests = [ROOT / f"python/tests/{room}/test_{name}.py" for room, names in TESTS.items() for name in names][-2 if small else 0 :]
    package = [sys.executable, "-m", "pytest", "-q", "-n", max(2, (os.cpu_count() or 2) - 4), "--dist", "worksteal", "-p", "no:cacheprovider", "--tb=short", *tests]
    budgets = [sys.executable, ROOT / "bench/any_budget.py", "--device", a.device, "--out", RESULTS, "--rounds", 1 if small else 5]
    found = {
        "kernels": Stage(90, doctor, own_limit=False, timed=False),
        "tasks": Stage(120, script("scripts/gpu_tasks.py", "--folder", WORK, "--out", RESULTS), timed=False),
        "package": Stage(240, [package], own_limit=False, timed=False),
        "budgets": Stage(120, [budgets], own_limit=False),
        "roofline": Stage(70, roofline),
        "table": Stage(150, table("--models", *first)),
        "plans": Stage(100, script("bench/plans.py", "--out", RESULTS, rows=True), timed=False),
        "python": Stage(100, script("scripts/gpu_python.py", "--out", RESULTS, rows=True), timed=False),
        "shapes": Stage(240, table(*shapes)),
        "bits": Stage(150, script("scripts/gpu_bits.py", "--folder", WORK, "--out", RESULTS, rows=True), timed=False),
        "tables": Stage(600, table("--models", *others)),
    }
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    for tool in gpu_goals.SANITIZERS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", 9, BIN / "kernel_check", a.device]
        found[tool] = Stage(300, [command if sanitizer else ["sh", "-c", f"echo no compute-sanitizer here; exit {SKIPPED}"]], own_limit=False, timed=False)
    return found


def environment(device):
    """Sets the environment of the programs: torch's libraries and what they need, and the packages of the archive."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    folders = [torch / "lib", *sorted((torch.parent / "nvidia").glob("*/lib"))]
    paths = {"LD_LIBRARY_PATH": folders, "PYTHONPATH": [ROOT / "python", ROOT / "site"]}
    for name, first in paths.items():
        os.environ[name] = ":".join(map(str, [*first, *filter(None, [os.environ.get(name)])]))
    os.environ.update(TORCH_DIR=str(torch), OMP_WAIT_POLICY="PASSIVE", PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1",
                      COMPACT_TEST_DEVICE=device)  # fmt: skip


def ended(command, log, seconds):
    """The exit code of a command whose output goes to a file; OUT_OF_TIME where it took too long."""
    log.write(f"$ {' '.join(map(str, command))}\n".encode())
    log.flush()
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    RUNNING.append(process)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # which ends its children, too
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def run_stage(name, stage, seconds):
    """(exit code, the last line of its log)"""
    path, end, codes = RESULTS / f"{name}.log", time.monotonic() + seconds, []
    with path.open("ab") as log:
        for command in stage.commands:
            left = end - time.monotonic()
            if stage.own_limit:
                command = [*command, "--minutes", round(max(left - 12, 1) / 60, 3)]
            codes.append(ended(command, log, max(left, 1)) if left > 1 else OUT_OF_TIME)
    lines = path.read_text(errors="replace").splitlines()
    bad = [code for code in codes if code not in (0, OUT_OF_TIME)]
    return bad[0] if bad else max(codes), lines[-1]


def publish(a, state):
    """The page of goals with the other pages behind it, and everything in one archive."""
    page = gpu_goals.write_page(RESULTS, BIN / "compact", a.device, state, " ".join(["gpu_check.py", *sys.argv[1:]]))
    others = [path.read_text() for path in sorted(RESULTS.glob("*.md")) if path.name != "goals.md"]
    write(a.out / "goals.md", "\n".join([page, *others]))
    with tarfile.open(a.out / "results.tar.xz.new", "w:xz") as archive:
        for path in sorted(RESULTS.iterdir()):
            if path.suffix == ".new" or not path.is_file():
                continue  # a stage is about to put it in the place of another
            data = path.read_bytes()  # at once, since stages write
            info = tarfile.TarInfo(f"results/{path.name}")
            info.size, info.mtime = len(data), path.stat().st_mtime
            archive.addfile(info, io.BytesIO(data))
    (a.out / "results.tar.xz.new").replace(a.out / "results.tar.xz")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=9, help="for this call (default 9)")
    p.add_argument("--only", help="comma-separated stages")
    p.add_argument("--rows", default="", help="only rows of tables, plans, python and bits whose name contains one of these (comma-separated)")
    p.add_argument("--limit", type=float, default=120, help="seconds for one row of the tables (default 120)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT") or ROOT / "out"), help="where page and archive go")
    p.add_argument("--resume", type=pathlib.Path, metavar="FILE", help="results.tar.xz of a call on another machine, to go on from")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: the same stages, smaller, without a GPU")
    a = p.parse_args()
    if a.minutes <= 0 or a.limit <= 0:
        p.error(f"--minutes and --limit must be positive, are {a.minutes:g} and {a.limit:g}")
    return a, p


def main():
    a, p = arguments()
    end = time.monotonic() + 60 * a.minutes
    if not importlib.util.find_spec("torch"):
        sys.exit(f"{sys.executable} has no torch: call this script with a Python that has one")
    if not (BIN / "compact").exists():
        sys.exit(f"no {BIN}/compact: run this in the folder that gpu-pack.tar.xz is unpacked to")
    if a.device == "cuda" and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        sys.exit("no NVIDIA GPU here; --device cpu tries this script without one")
    end_with_children()
    environment(a.device)
    for folder in (WORK, RESULTS, a.out):
        folder.mkdir(parents=True, exist_ok=True)
    if a.resume:
        with tarfile.open(a.resume) as archive:
            archive.extractall(ROOT, filter="data")
    found = stages(a)
    wanted = a.only.split(",") if a.only else list(found)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        p.error(f"--only: unknown stage {unknown[0]}; known: {', '.join(found)}")
    path = RESULTS / "stages.json"
    state = json.loads(path.read_text()) if path.exists() else {}
    key = hash_of(*(f for f in sorted(BIN.iterdir()) if f.is_file()), device_name(a.device))
    state = {name: s for name, s in state.items() if s["key"] == key}
    codes, lock = {}, threading.Lock()

    def attend(name):
        before, left = state.get(name, {}), end - time.monotonic()
        if before.get("status") in ("passed", "skipped") and not a.only:
            codes[name] = 0 if before["status"] == "passed" else SKIPPED
            return
        if left < 40:  # rows need some of it
            codes[name] = OUT_OF_TIME
            return
        print(f"{name} ...", flush=True)
        begin = time.monotonic()
        code, last = run_stage(name, found[name], min(left - 8, found[name].seconds))
        status = {0: "passed for these rows" if a.rows else "passed", OUT_OF_TIME: "cut off", SKIPPED: "skipped"}.get(code, "FAILED")
        print(f"   {name} {status} after {time.monotonic() - begin:.0f} s: {last[:150]}", flush=True)
        with lock:
            codes[name] = code
            state[name] = {"status": status, "last": last[:300], "seconds": round(time.monotonic() - begin), "key": key,
                           "tries": before.get("tries", 0) + 1, "date": f"{datetime.datetime.now(datetime.timezone.utc):%F %TZ}"}  # fmt: skip
            ordered = {n: state[n] for n in found if n in state}
            write(path, json.dumps(ordered, indent=1) + "\n")
            publish(a, ordered)

    ordered = sorted(wanted, key=lambda n: state.get(n, {}).get("tries", 0))
    if not (WORK / "data/prompts.jsonl").exists():  # the last that is written; stages share them
        make_data(WORK / "data")
    with concurrent.futures.ThreadPoolExecutor(BESIDE) as pool:
        try:
            list(pool.map(attend, [n for n in ordered if not found[n].timed]))
        except BaseException:  # SIGTERM, too
            pool.shutdown(wait=False, cancel_futures=True)
            for process in RUNNING:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            raise
    for name in ordered:
        if found[name].timed:
            attend(name)
    bad = [name for name, code in codes.items() if code not in (0, OUT_OF_TIME, SKIPPED)]
    rest = [name for name, code in codes.items() if code == OUT_OF_TIME]
    publish(a, state)
    print(f"results: {a.out}/goals.md, {a.out}/results.tar.xz")
    if bad or rest:
        print("; ".join(f"{what}: {', '.join(names)}" for what, names in (("FAILED", bad), ("time is up, call again for", rest)) if names))
        return 1 if bad else OUT_OF_TIME
    print("everything asked for passed" + " but what was skipped" * (SKIPPED in codes.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
