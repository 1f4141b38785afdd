# SPDX-License-Identifier: Apache-2.0
"""`compact train` killed at random moments and resumed ends as the run that nobody touched; SIGTERM
saves and ends the run within the step. COMPACT_KILLS says how many kills (15)."""
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from _program import PROGRAM, environment, tiny

KILLS = int(os.environ.get("COMPACT_KILLS", 15))
STEPS = 40


def flags(folder, output, **more):
    values = dict(flag.removeprefix("--").split("=", 1) for flag in tiny(folder))
    values |= {
        "max_steps": STEPS,
        "save_steps": 1,
        "save_total_limit": 2,
        "threads": 1,
        "output_dir": folder / output,
    }
    return [f"--{name}={value}" for name, value in (values | more).items()]


def start(arguments, log):
    return subprocess.Popen(
        [PROGRAM, "train", *arguments], env=environment(), stdout=log, stderr=subprocess.STDOUT
    )


def finish(arguments, log):
    status = start(arguments, log).wait(timeout=300)
    assert status == 0, f"exit code {status}:\n{pathlib.Path(log.name).read_text()[-3000:]}"


def resume_flags(folder, output):
    kept = list((folder / output).glob("checkpoint-*"))
    how = {"resume_from_checkpoint": "latest"} if kept else {"overwrite_output_dir": "true"}
    return flags(folder, output, **how)


def losses(output):
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r.get("loss"), r.get("grad_norm"), r.get("eval_loss")) for r in rows]


def check_same(output, whole):
    assert (output / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert losses(output) == losses(whole)
    ends = [json.loads((f / "all_results.json").read_text()) for f in (output, whole)]
    for name in ("train_loss", "eval_loss", "steps"):
        assert ends[0][name] == ends[1][name], name


def check_model_is_whole(output):
    """Where there are weights, they and the config that they need are complete."""
    model = output / "model.safetensors"
    if not model.exists():
        return
    (length,) = struct.unpack("<Q", model.open("rb").read(8))
    header = json.loads(model.open("rb").read(8 + length)[8:])
    end = max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
    assert model.stat().st_size == 8 + length + end
    assert json.loads((output / "config.json").read_text())["model_type"] == "llama"


def killed_anywhere(folder, log):
    began = time.monotonic()
    finish(flags(folder, "whole"), log)
    seconds = time.monotonic() - began
    draw = random.Random(1)
    output, kills, reached = folder / "killed", 0, []
    while kills < KILLS:
        process = start(resume_flags(folder, "killed"), log)
        try:
            status = process.wait(timeout=draw.uniform(0, 0.6 * seconds))
            assert status == 0, pathlib.Path(log.name).read_text()[-3000:]
            shutil.rmtree(output)  # came to its end: begin again
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            check_model_is_whole(output)
            steps = [int(p.name.split("-")[1]) for p in output.glob("checkpoint-*")]
            reached.append(max(steps, default=0))
    finish(resume_flags(folder, "killed"), log)
    check_same(output, folder / "whole")
    finish(resume_flags(folder, "killed"), log)  # as one that was killed while it ended
    assert losses(output) == losses(folder / "whole")
    assert not list(output.glob(".compact-*"))
    print(f"{kills} kills, at steps {reached}")


def terminated_within_the_step(folder, log):
    output = folder / "terminated"
    process = start(flags(folder, "terminated", save_steps=0), log)
    metrics = output / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    before = metrics.read_text().count("\n")
    assert process.wait(timeout=60) == 143
    (saved,) = [int(p.name.split("-")[1]) for p in output.glob("checkpoint-*")]
    # The step that was running, and one that ended while this looked.
    assert before <= saved <= before + 2, (before, saved)
    assert saved == metrics.read_text().count("\n")
    finish(resume_flags(folder, "terminated"), log)
    check_same(output, folder / "whole")


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a save syncs many times
with tempfile.TemporaryDirectory(dir=MEMORY) as name:
    root = pathlib.Path(name)
    with open(root / "log", "w", encoding="utf-8") as file:
        killed_anywhere(root, file)
        terminated_within_the_step(root, file)
