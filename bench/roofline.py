#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bandwidth of every kernel beside a copy on the same device in the same run (bench/kernels.cpp),
as a page and JSON. What is there of the same program is not measured again.

    python bench/roofline.py --program build-cuda/bench/bench_kernels --device cuda
"""
import argparse
import json
import pathlib
import sys
import tempfile

from measuring import ROOT, Rows, end_with_children, exit_code, failure, hash_of, origin_lines, program_at, run

GOAL = 0.80  # of the copy's bandwidth, by a kernel on large tensors; our own


def share(kernel):
    """The kernel's bandwidth as a part of the copy's."""
    return kernel["copy_seconds"] / kernel["seconds"]


def page(of, rows):
    lines = origin_lines("Bandwidth of kernels beside a copy", of)
    lines += ["Bytes: what a kernel must read and write; the copy moves as many. GB of 10^9 bytes. `of ATen`: its seconds",
              "beside those of PyTorch's own operation (for codecs a cast to bytes). All take turns, and the best of each counts.",
              f"Our own goal on large tensors: at least {GOAL:.0%} of the copy."]  # fmt: skip
    lines += ["", "| kernel | type | MB | ms | GB/s | copy, GB/s | of the copy | of ATen |", "|---|---|---|---|---|---|---|---|"]
    for k in (kernel for row in rows for kernel in row.get("kernels", [])):
        size = k["bytes"] * 1e-9
        lines.append(f"| {k['kernel']} | {k['type']} | {size * 1e3:,.0f} | {k['seconds'] * 1e3:.3f} | {size / k['seconds']:,.0f} | "
                     f"{size / k['copy_seconds']:,.0f} | {share(k):.2f} | {k['seconds'] / k['aten_seconds']:.3f} |")  # fmt: skip
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default="build/bench/bench_kernels")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--seconds", type=float, default=0.2, help="of measuring, for each of the three")
    p.add_argument("--limit", type=float, default=400, help="seconds for all kernels")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    p.add_argument("--out", default=str(ROOT / "bench/results"))
    a = p.parse_args()
    program = program_at(a.program)
    end_with_children()

    def make(name, limit):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "kernels.json"
            command = [program, "--device", a.device, "--threads", a.threads, "--seconds", a.seconds, "--json", out]
            code, text, errors = run(command, limit)
            print(text, flush=True)
            if code != 0:
                return {"status": failure(code, errors, limit)}
            return {"status": "ok", "kernels": json.loads(out.read_text())}

    rows = Rows(a.out, "roofline", hash_of(program, a.seconds), a.device, page)
    failed, left = rows.each(["kernels"], make, a.minutes, a.limit)
    kernels = rows.rows.get("kernels", {}).get("kernels", [])
    reached = sum(share(k) >= GOAL for k in kernels)
    print(f"{reached} of {len(kernels)} kernels reach {GOAL:.0%} of a copy" if kernels else "no kernel is measured")
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
