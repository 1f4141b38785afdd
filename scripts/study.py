# SPDX-License-Identifier: Apache-2.0
"""Helpers of studies of many training runs: their arguments, runs whose results are kept as rows and
not repeated, differences paired by seed, tables. Standard library only."""
import argparse
import concurrent.futures
import datetime
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT / "../shared/data"))
# Two-sided 95 % quantiles of Student's t.
T_QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


# Books that no run trains on.
HELD_OUT = ["ABronte_Agnes.txt", "CBronte_Professor.txt", "Sterne_Sentimental.txt"]


def novels(cache):
    """Unpacks the novels; returns (training files, held-out files)."""
    archive = DATA / "text/british-fiction.tar.xz"
    if not archive.exists():
        sys.exit(f"{archive}: not found; set COMPACT_DATA to a folder that has text/british-fiction.tar.xz")
    folder = cache / "british-fiction"
    if not folder.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(cache, filter="data")
    files = sorted(folder.glob("*.txt"))
    held = [f for f in files if f.name in HELD_OUT]
    return [f for f in files if f not in held], held


def arguments(description, settings):
    p = argparse.ArgumentParser(description=description)
    cores = len(os.sched_getaffinity(0))
    p.add_argument("--setting", choices=settings, default="cpu")
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--jobs", type=int, default=1 if "gpu" in sys.argv else cores,
                   help="runs at a time; default: as many as cores, 1 on a GPU")
    p.add_argument("--hours", type=float, default=1e9,
                   help="start no run after this time; 0: only the report of what is there")
    p.add_argument("--output", type=pathlib.Path, default=None, help="where results of runs are kept")
    return p


class Study:
    """Rows of a study of this kind: in a folder of their own, and in the committed results. What makes
    a row one of its kind is under the names in `key`."""

    def __init__(self, kind, key, kept, args):
        self.args, self.key, self.kept = args, key, kept
        self.folder = args.output or ROOT / "runs" / f"{kind}-{args.setting}"
        self.cache = self.folder / "cache"
        self.cache.mkdir(parents=True, exist_ok=True)
        self.results = ROOT / "bench/results" / f"{kind}-{args.setting}.json"
        self.results.parent.mkdir(parents=True, exist_ok=True)
        self.threads = max(1, len(os.sched_getaffinity(0)) // args.jobs)  # of each run
        self.deadline = time.time() + args.hours * 3600
        if self.results.exists():
            for row in json.loads(self.results.read_text())["rows"]:
                if not self._file(row).exists():
                    self._file(row).write_text(json.dumps(row))
        rows = [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]
        self.rows = list({self._name(row): row for row in rows}.values())

    def _name(self, row):
        texts = [f"s{row[k]}" if k == "seed" else str(row[k]) for k in self.key]
        return "-".join("".join(c if c.isalnum() else "_" for c in text) for text in texts)

    def _file(self, row):
        return self.folder / f"{self._name(row)}.json"

    def _train(self, row, flags):
        name = self._name(row)
        out = self.folder / "runs" / name
        command = [self.args.program, "train", *flags, "--seed", str(row["seed"]),
                   "--cache_dir", str(self.cache), "--output_dir", str(out), "--overwrite_output_dir",
                   "--threads", str(self.threads)]
        started = time.time()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 3:  # diverged: a result, too
            values = {"eval_loss": math.inf}
        elif done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\nfailed with {done.returncode}")
        else:
            values = json.loads((out / "all_results.json").read_text())
        row = {**row, "seconds": time.time() - started, **{k: values.get(k) for k in self.kept}}
        shutil.rmtree(out, ignore_errors=True)
        self.add(row)
        print(f"{name}: eval_loss {row['eval_loss']:.4f} in {row['seconds']:.0f} s", flush=True)

    def has(self, key):
        return any(all(r[k] == key[k] for k in self.key) for r in self.rows)

    def add(self, row):
        temporary = self._file(row).with_suffix(".tmp")
        temporary.write_text(json.dumps(row))
        temporary.replace(self._file(row))
        self.rows.append(row)

    def run(self, wanted):
        """(row's key, flags) that have no row yet, `jobs` at a time, each on its share of the cores."""
        self.each(wanted, self._train)

    def each(self, wanted, make):
        """Calls make(key, rest) for those (key, rest) that have no row yet, `jobs` at a time; it adds
        the row."""
        def one(key, rest):
            if time.time() < self.deadline and not self.has(key):
                make(key, rest)
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            try:
                for done in [pool.submit(one, *w) for w in wanted]:
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def write(self, title, text, lines):
        """The table beside its rows, as Markdown and JSON."""
        page = [f"# {title} ({self.args.setting})", "",
                f"{datetime.date.today()}, {platform.processor() or platform.machine()}, "
                f"{os.cpu_count()} cores; {text}", "", *lines]
        self.results.with_suffix(".md").write_text("\n".join(page).rstrip() + "\n")
        self.results.write_text(
            json.dumps({"setting": self.args.setting, "rows": self.rows}, indent=1) + "\n")
        print("\n".join(page))


def difference(values, base, unit=1, digits=3):
    """Mean difference of values to base, both by seed, with its 95 % interval where there are two."""
    pairs = [values[s] - base[s] for s in values if s in base]
    if not pairs:
        return ""
    mean = sum(pairs) / len(pairs)
    if len(pairs) < 2:
        return f"{mean * unit:+.{digits}f}"
    variance = sum((p - mean) ** 2 for p in pairs) / (len(pairs) - 1)
    quantile = T_QUANTILES[len(pairs) - 2] if len(pairs) - 2 < len(T_QUANTILES) else 1.96
    half = quantile * math.sqrt(variance / len(pairs))
    return f"{mean * unit:+.{digits}f} ± {half * unit:.{digits}f}"


def shown(flags):
    """Without the paths of this machine."""
    return " ".join(pathlib.Path(f).name if f.startswith("/") else f for f in map(str, flags))


def table(name, text, rows, ways, figure, times=True):
    """Lines of a section: every way's mean figure and what it is away from `off`, of rows that have
    `preset` (a way), `seed`, step_seconds and bytes. Scores are in percent, losses in nats. Without
    `times` of steps where runs that are compared shared cores with other work."""
    unit = 1 if figure.endswith("loss") else 100
    columns = ["way", figure, "difference to off", "seeds", "saved MiB", "peak MiB"]
    columns += ["step ms"] * times
    lines = [f"## {name}", "", text, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    done = [r for r in rows if r[figure] is not None and r["step_seconds"] is not None]
    at = {w: {r["seed"]: r[figure] for r in done if r["preset"] == w} for w in ways}
    for way in ways:
        of = [r for r in done if r["preset"] == way]
        diverged = sum(r["preset"] == way for r in rows) - len(of)
        if diverged:
            lines.append(f"| {way} | diverged | | {diverged} |" + " |" * (len(columns) - 4))
        if not of:
            continue

        def mib(key, digits):
            known = [r[key] for r in of if r.get(key)]
            return f"{max(known) / 2**20:.{digits}f}" if known else ""
        step = f" {sorted(r['step_seconds'] for r in of)[len(of) // 2] * 1e3:.0f} |"
        lines.append(
            f"| {way} | {sum(at[way].values()) / len(of) * unit:.3f} | "
            f"{'' if way == 'off' else difference(at[way], at.get('off', {}), unit)} | {len(of)} | "
            f"{mib('memory/saved_bytes', 2)} | {mib('memory/peak_bytes', 1)} |{step * times}")
    return [*lines, ""]
