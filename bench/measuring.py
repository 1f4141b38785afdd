# SPDX-License-Identifier: Apache-2.0
"""Helpers of scripts that run the program and write a page of figures: on what they ran, one run with
a time limit, and rows that are kept beside the page. Standard library only."""
import concurrent.futures
import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT_OF_TIME = 75  # exit code where a script stopped in time with rows left
BUDGET = 4  # exit code of the program where a step does not fit


def device_name(device):
    """The model of the first GPU, or of the CPU."""
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "cpu"


def slug_of(name):
    """A device's name as a part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def commit():
    if (ROOT / "commit.txt").exists():  # of an archive that scripts/gpu_pack.sh made
        return (ROOT / "commit.txt").read_text().strip()
    try:
        found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:  # a machine without git
        return "unknown"
    return found.stdout.strip() or "unknown"


def torch_version():
    """The version of the torch in TORCH_DIR, else of this Python's, without importing it."""
    try:
        text = (pathlib.Path(os.environ["TORCH_DIR"]) / "version.py").read_text()
        return re.search(r"__version__ = '([^']+)'", text)[1]
    except (KeyError, OSError, TypeError):
        pass
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def shown(words):
    """A command without the folders of this machine."""
    texts = (str(word).replace(str(ROOT) + "/", "") for word in words)
    return shlex.join(pathlib.Path(t).name if t.startswith("/") else t for t in texts)


def origin(device):
    """The facts that every page states about itself."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": device_name(device),
        "torch": torch_version(),
        "commit": commit(),
        "command": shown(["python", *sys.argv]),
    }


def origin_lines(title, of):
    torch = f", torch {of['torch']}" if "torch" in of else ""
    return [f"# {title}", "", f"{of['date']}, {of['device']}{torch}, commit {of['commit']}; made by", f"`{of['command']}`."]


def hash_of(*parts):
    """A hash of the files and texts that results hold for."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, pathlib.Path) else str(part).encode()
        whole.update(hashlib.sha256(data).digest())
    return whole.hexdigest()


def program_at(path):
    program = pathlib.Path(path).resolve()
    if not program.exists():
        sys.exit(f"no program {path}: build it first")
    return program


def write(path, text):
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def page(lines, out):
    """Prints a page, and writes it where `out` is a path."""
    text = "\n".join([*lines, ""])
    if out:
        write(out, text)
    print(text)


def gib(n):
    return "" if n is None else f"{n / 2**30:.2f}"


def run(command, limit):
    """(exit code or None at the limit, standard output, the end of what went wrong)"""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # so that a compiler's children end with it
    )
    try:
        out, errors = process.communicate(timeout=limit)
        return process.returncode, out, (errors or out).strip()[-2000:]
    except BaseException as error:  # `timeout` and Ctrl-C end this script: its children, too
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, "", ""
        raise


def end_with_children():
    """Lets SIGTERM, as `timeout` sends it, end this script as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def failure(code, errors, limit):
    """The status of a run that did not end well: a whole sentence of it."""
    if code is None:
        return f"over {limit:.0f} s"
    if code == BUDGET or re.search(r"out of memory|OutOfMemory|can't allocate", errors, re.IGNORECASE):
        return "out of memory"
    return f"failed ({code}): {errors.splitlines()[-1] if errors else ''}"


class Rows:
    """Named rows of a page `NAME-DEVICE`, written as they come. What is there of the same key is not
    made again: `each` calls make(name, limit) -> row with a `status` for what has no good row yet."""

    def __init__(self, out, name, key, device, draw):
        self.of, self.key, self.draw = origin(device), key, draw
        out = pathlib.Path(out)
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"{name}-{slug_of(self.of['device'])}.json"
        stored = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.rows = {r["name"]: r for r in stored["rows"]} if stored.get("key") == key else {}

    def each(self, names, make, minutes, limit, workers=1):
        """The numbers of rows that failed and that are left for another time. `workers`: rows at a time."""
        end = time.monotonic() + minutes * 60
        failed = left = 0
        names = list(names)
        self.rows = {n: self.rows[n] for n in names if n in self.rows}

        def made(name):
            """The row, or None where time is up."""
            row, remaining = self.rows.get(name), end - time.monotonic()
            if row and row["status"] in ("ok", "out of memory"):
                return row
            if remaining < 10:
                return None
            row = {"name": name, **make(name, min(limit, remaining))}
            # The end of this call is not that of the row.
            return None if row["status"].startswith("over") and remaining < limit else row

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for name, row in zip(names, map(made, names) if workers == 1 else pool.map(made, names)):
                if row is None:
                    left += 1
                    continue
                self.rows[name] = row
                self.save(names)
                failed += row["status"] not in ("ok", "out of memory")
                print(f"{name:60} {row['status']}", flush=True)
        self.save(names)
        return failed, left

    def save(self, names):
        rows = [self.rows[n] for n in names if n in self.rows]
        write(self.path, json.dumps({**self.of, "key": self.key, "rows": rows}, indent=1) + "\n")
        write(self.path.with_suffix(".md"), "\n".join([*self.draw(self.of, rows), ""]))


def exit_code(failed, left):
    return 1 if failed else OUT_OF_TIME if left else 0
