#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The resources of a multiprocessor that every CUDA kernel takes, by the messages of ptxas during a build.

  cmake --preset cuda -DCOMPACT_PTXAS_INFO=ON && cmake --build build-cuda --target kernel_check | tee LOG
  scripts/kernel_resources.py LOG [--table FILE.md]

Exit code 1 where a kernel has a stack frame or spills registers, which both are memory of every
thread, or where the log names no kernel.
"""
import argparse
import collections
import datetime
import pathlib
import re
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
WARPS = {80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}  # that a multiprocessor holds
REGISTERS = 65536
Kernel = collections.namedtuple("Kernel", "name architecture stack spilled registers shared")


def name_of(mangled):
    """FILE: kernel, of an entry's mangled name."""
    place = re.search(r"_\d+_([a-z0-9_]+?)_cu_[0-9a-f]{8}(?:_\d+)?(\d.*)", mangled)
    if not place:
        return mangled
    length = re.match(r"\d+", place.group(2))
    rest = place.group(2)
    while length:  # identifiers as <length><text>; the file's hash may end in digits
        digits = length.group()
        for cut in range(len(digits)):
            size = int(digits[cut:])
            text = rest[len(digits):len(digits) + size]
            if size and re.fullmatch(r"[a-z][a-z0-9_]*", text):
                return f"{place.group(1)}: {text}"
        break
    return mangled


def kernels(text):
    current = None
    for line in text.splitlines():
        if found := ENTRY.search(line):
            current = [name_of(found.group(1)), int(re.sub(r"\D", "", found.group(2))), 0, 0]
        elif current and (found := STACK.search(line)):
            current[2:] = int(found.group(1)), int(found.group(2)) + int(found.group(3))
        elif current and (found := USED.search(line)):
            yield Kernel(*current, int(found.group(1)), int(found.group(2) or 0))
            current = None


def occupancy(kernel):
    """Warps that fit by registers, which come in lots of 256 a warp, of those that are held."""
    held = WARPS.get(kernel.architecture, 64)
    lot = -(-kernel.registers * 32 // 256) * 256
    return min(held, REGISTERS // lot) / held


def span(values, form):
    low, high = min(values), max(values)
    return form(low) if low == high else f"{form(low)}–{form(high)}"


def table(all_kernels, source):
    rows = collections.defaultdict(list)
    for kernel in all_kernels:
        rows[kernel.name].append(kernel)
    architectures = sorted({k.architecture for k in all_kernels})
    lines = [
        "# What CUDA kernels take of a multiprocessor", "",
        f"{datetime.date.today()}, {source}. Registers of a thread, over all types that a kernel is made for; occupancy by registers: warps that",
        "fit of those that a multiprocessor holds. Nothing was run. These kernels wait for memory, which about half of the warps hide.", "",
        "| kernel | made | " + " | ".join(f"sm_{a} registers | occupancy" for a in architectures) +
        " | shared memory, B | stack, B | spilled, B |",
        "|---|--:|" + "--:|--:|" * len(architectures) + "--:|--:|--:|"]
    for name, made in sorted(rows.items()):
        cells = []
        for architecture in architectures:
            own = [k for k in made if k.architecture == architecture]
            cells += [span([k.registers for k in own], str),
                      span([occupancy(k) for k in own], "{:.2f}".format)]
        lines.append(f"| {name} | {len(made) // len(architectures)} | " + " | ".join(cells) +
                     f" | {max(k.shared for k in made)} | {max(k.stack for k in made)} | {max(k.spilled for k in made)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, help="write it here")
    parser.add_argument("--compiler", default="nvcc", help="what compiled, for the table's head")
    arguments = parser.parse_args()
    found = list(kernels(arguments.log.read_text(errors="replace")))
    if not found:
        print(f"{arguments.log}: names no kernel: build with -DCOMPACT_PTXAS_INFO=ON, from the start")
        return 1
    if arguments.table:
        arguments.table.write_text(table(found, arguments.compiler))
    wrong = [k for k in found if k.stack or k.spilled]
    for k in wrong:
        print(f"{k.name}, sm_{k.architecture}: a stack of {k.stack} B, {k.spilled} B spilled")
    print(f"{len(found)} kernels, {len(wrong)} with a stack or spills, at most {max(k.registers for k in found)} registers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
