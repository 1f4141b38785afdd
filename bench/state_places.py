#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Updates by AdamW whose moments are in memory and in files, with room for all of them and with less.

Each row is a process of its own that updates one float32 matrix `--updates` times, after one that makes the state; the rows take
turns, `--rounds` times. With `--limit` (as root, where the system has memory cgroups of version 1) every row runs again where no more memory
than that is to be had, weight, gradient, code and pages of files included. Floors: a copy in memory of as many bytes as an
update reads and writes (28 an element), and a file of the moments' size (8) read and written from front to back.

    python bench/state_places.py --mib 1024 --limit 3.5 --folder DISK --out bench/results/state-places.md
"""
import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

import measuring

CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")
PIECE = 1 << 24


def updates(row, elements, folder):
    import torch

    import compact

    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(elements // 1024, 1024))
    p.grad = torch.randn_like(p)
    settings = {"lr": 1e-3, "weight_decay": 0.01}
    if row == "torch":
        optimizer = torch.optim.AdamW([p], fused=True, **settings)
    else:
        optimizer = compact.optim.AdamW([p], moments=row, offload_folder=folder, **settings)
    return optimizer.step


def copies(elements):
    import torch

    a, b = (torch.ones(7 * elements // 16) for _ in range(2))  # 28 bytes an element, in eight passes

    def run():
        for _ in range(8):
            b.copy_(a)

    return run


def file_passes(elements, folder):
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.posix_fallocate(file, 0, 8 * elements)
    buffer = bytearray(os.urandom(PIECE))

    def run():
        for begin in range(0, 8 * elements, PIECE):
            os.preadv(file, [buffer], begin)
            os.pwritev(file, [buffer], begin)

    return run


ROWS = {"copy": "a copy in memory", "file": "the file alone, read and written", "torch": "torch.optim.AdamW, fused", "f32": "`f32`", "f32+disk": "`f32+disk`"}


def child(a):
    run = copies(a.elements) if a.row == "copy" else file_passes(a.elements, a.folder) if a.row == "file" else updates(a.row, a.elements, a.folder)
    run()
    times = []
    for _ in range(a.updates):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    print(statistics.median(times))


@contextlib.contextmanager
def cgroup(gigabytes):
    """A group of processes that have no more memory than that; yields what puts a process there."""
    if gigabytes is None:
        yield None
        return
    group = CGROUPS / f"compact-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(int(gigabytes * 2**30)))
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        group.rmdir()


def measure(a, limit):
    times = {row: [] for row in ROWS}
    for _ in range(a.rounds):
        for row, found in times.items():
            command = [sys.executable, __file__, f"--row={row}", f"--elements={a.mib * 2**18}", f"--folder={a.folder}", f"--updates={a.updates}"]
            with cgroup(limit) as enter:
                done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
            found.append(float(done.stdout) if done.returncode == 0 else None)
            print(f"limit {limit}: {row} {found[-1] or done.returncode}", flush=True)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="of the matrix")
    parser.add_argument("--limit", type=float, help="GiB of memory")
    parser.add_argument("--folder", default=".", help="on a disk")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--elements", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.row:
        return child(a)
    lines = measuring.origin_lines("State in files", measuring.origin("cpu"))
    lines += ["", f"One float32 matrix of {a.mib:,} MiB, moments of {2 * a.mib:,} MiB, {os.cpu_count()} threads; seconds of an update, medians of {a.rounds} × {a.updates}."]
    for limit in (None, a.limit) if a.limit else (None,):
        times = measure(a, limit)
        lines += ["", f"## {'With room for all' if limit is None else f'With {limit:g} GiB of memory in all'}", "", "| way | seconds | spread | beside a copy |", "|---|---|---|---|"]
        floor = statistics.median(times["copy"]) if None not in times["copy"] else None
        for row, found in times.items():
            if None in found:
                lines.append(f"| {ROWS[row]} | killed: out of memory | | |")
                continue
            middle = statistics.median(found)
            lines.append(f"| {ROWS[row]} | {middle:.2f} | {min(found):.2f} to {max(found):.2f} | {f'{middle / floor:.2f}' if floor else ''} |")
    measuring.page(lines, a.out)


if __name__ == "__main__":
    main()
