#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every source of a configured build folder with another compiler and keeps nothing of it:
scripts/compilers.sh calls this. A warning is an error.

  syntax.py BUILD WORK [--optimize] [--only REGEX] -- COMPILER...

WORK takes the precompiled headers. Without --optimize the compiler only reads, which finds all but
the warnings that come of optimising."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys

# Flags by which CMake's compiler finds headers that it has compiled; and flags that change no warning
# without --optimize, so that one compiled header fits all.
PRECOMPILED = {"-Winvalid-pch", "-fpch-preprocess"}
PIE_OR_LEVEL = re.compile(r"-O\w*|-fPI[CE]")
CLANG = ["-Wno-unknown-warning-option", "-Wno-unused-command-line-argument", "-Wno-ignored-optimization-argument"]


class Unit:
    """A command of compile_commands.json: its flags, its source and the header that it begins with."""

    def __init__(self, entry, optimize):
        words = shlex.split(entry["command"])
        self.source, self.folder = entry["file"], entry["directory"]
        self.makes_header = "c++-header" in words
        self.header, self.flags = None, []
        last = max(i for i, word in enumerate(words) if word == "-o")
        # The compiler stands behind its launchers and before the first flag.
        rest = iter(words[next(i for i, word in enumerate(words) if word.startswith("-") and word != "-E"):])
        for word in rest:
            if word in ("-o", "-c"):
                next(rest)
            elif word == "-include":
                self.header = next(rest)
            elif word == "-x":  # said again
                next(rest)
            elif word not in PRECOMPILED and (optimize or not PIE_OR_LEVEL.fullmatch(word)):
                self.flags.append(word)
        self.name = words[last + 1]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--optimize", action="store_true")
    parser.add_argument("--only", default="", help="what is found in the name of an object file")
    parser.add_argument("compiler", nargs="+")
    args = parser.parse_args()
    entries = json.loads((args.build / "compile_commands.json").read_text())
    units = [Unit(e, args.optimize) for e in entries if not e["file"].endswith(".cu") or "-xc++" in e["command"]]
    clang = "clang" in args.compiler[0]

    def headers_name(header):
        return args.work / pathlib.Path(header).parent.name / "header.h"

    def compile(unit):
        flags = [f for f in unit.flags if not (clang and f == "-fopenmp")] + ["-Werror"] + (CLANG if clang else [])
        if unit.makes_header:
            copy = headers_name(unit.header)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(unit.header, copy)
            what = ["-x", "c++-header", "-include", str(copy), "-o", f"{copy}.gch", "-c"]
        else:
            what = ["-S", "-o", "/dev/null"] if args.optimize else ["-fsyntax-only"]
            if unit.header:
                what += ["-Winvalid-pch", "-include", str(headers_name(unit.header))]
        return unit, subprocess.run([*args.compiler, *flags, *what, unit.source], cwd=unit.folder, capture_output=True, text=True)

    failed = 0
    wanted = [u for u in units if not u.makes_header and re.search(args.only, u.name)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for some in ([u for u in units if u.makes_header], wanted):  # headers first
            for unit, done in pool.map(compile, some):
                if done.returncode or done.stderr:
                    failed += 1
                    print(f"{unit.name}\n{done.stderr}", flush=True)
            if failed and some is not wanted:
                return 1  # without them everything else would take long
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(wanted)} compilations, {failed} with warnings or errors, {used.ru_utime + used.ru_stime:.0f} s of CPU")
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
