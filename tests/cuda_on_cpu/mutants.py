#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the CUDA kernels, one fault at a time, and shows that the tests on the CPU find each.

  tests/cuda_on_cpu/mutants.py [--build build] [NAME...]

The tree stays as it is: a broken file lies in a folder of its own and is compiled in place of the
real one, as build/compile_commands.json says. Takes about a minute a fault; no part of the tests.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA = "compact/kernels/cuda/"
# Name, file, what is there, what takes its place. After a change of a header all kernels are compiled again.
MUTANTS = [
    ("reduction without its first barrier", "common.cuh", "  __syncthreads();  // an earlier reduction may still be read\n", ""),
    ("pack read beyond the end", "common.cuh", "  if (kWhole<T, V> && aligned && left >= V) {\n#pragma unroll\n    for (int i = 0; i < V; i += kStep) {\n      const auto words", "  if (kWhole<T, V> && aligned && left > 0) {\n#pragma unroll\n    for (int i = 0; i < V; i += kStep) {\n      const auto words"),
    ("rows of other blocks left out", "common.cuh", "int64_t{gridDim.x} * (blockDim.x / kWarp)", "int64_t{1} << 40"),
    ("random bits of a neighbour", "tiles.cuh", "odd * (kWarp / 2)", "odd * (kWarp / 4)"),
    ("shuffle outside of its mask", "tiles.cuh", "__shfl_xor_sync(kAllLanes, odd ? mine.v[i] : mine.v[i + 2], 1)", "__shfl_xor_sync(0xffffu, odd ? mine.v[i] : mine.v[i + 2], 1)"),
    ("butterflies without a barrier", "srht.cu", "      run([&](int j) { return j * step; });\n    }\n  }\n  __syncthreads();", "      run([&](int j) { return j * step; });\n    }\n  }"),
    ("next row before the last is out", "srht.cu", "* s.half_scale * s.out_scale); });\n    __syncthreads();", "* s.half_scale * s.out_scale); });"),
    ("signs read beyond their end", "srht.cu", "signs[min(bit + 16, last) / 32]", "signs[(bit + 16) / 32]"),
    ("sum of parts without a barrier", "norm.cu", "  lanes[threadIdx.y][threadIdx.x] = sum;\n  __syncthreads();", "  lanes[threadIdx.y][threadIdx.x] = sum;"),
    ("wide rows add to what is there", "norm.cu", "if (kPacks == 0 && sums) {", "if (false) {"),
    ("gradient of a norm with its mean added", "norm.cu", "(g[j] * w[j] - v[j] * along)", "(g[j] * w[j] + v[j] * along)"),
    ("codes of another plane", "quantize.cu", "words[p] |= word << (spot_of(h, step).at / h.plane * kBits);", "words[p] |= word;"),
    ("scales of groups that are not there", "quantize.cu", "if (lane() < whole) write_scale", "if (lane() < h.groups * kParts) write_scale"),
    ("last group read past the row", "quantize.cu", "held[p] = load_words<kPart>(from + at, left - at, w.aligned);", "held[p] = load_words<kPart>(from + at, left - at + kPart, w.aligned);"),
    ("vote of some lanes", "bits.cu", "      const uint32_t word = __ballot_sync(kAllLanes, set);", "      uint32_t word = 0;\n      if (element < a.count) word = __ballot_sync(kAllLanes, set);"),
    ("sum of exponentials not rescaled", "cross_entropy.cu", "sum = sum * quick_exp(largest - base) + halved<Sum>(x);", "sum = sum + halved<Sum>(x);"),
    ("half a head too far", "rope.cu", "store_pack(at + half, upper, V, kAligned);", "store_pack(at + half + V, upper, V, kAligned);"),
    ("step of another tensor", "optimizer.cu", "if (share < a.end[middle]) {", "if (share <= a.end[middle]) {"),
    ("one random half for two", "optimizer.cu", "v_bits[j] = w * kThirdHalf >> 16;", "v_bits[j] = w >> 16;"),
    ("fold that forgets its offset", "optimizer.cu", "a.offset / 8 + static_cast<uint64_t>(at / 8)", "static_cast<uint64_t>(at / 8)"),
    ("guard that nobody asks", "float8.cu", "  if (held_back(a.guard)) return;\n", ""),
    ("gradient of silu without its slope", "swiglu.cu", "s + gate[j] * s * (1.0f - s)", "s"),
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class Build:
    def __init__(self, folder):
        self.folder = folder
        commands = json.loads((folder / "compile_commands.json").read_text())
        self.compile = {
            pathlib.Path(c["file"]).name: c for c in commands
            if "cuda_kernels_on_cpu.dir" in c["command"] and c["file"].endswith(".cu")}
        lines = run(["ninja", "-C", str(folder), "-t", "commands", "cuda_on_cpu"], check=True).stdout
        self.link = [part for part in lines.splitlines()[-1].split(" && ") if " -o " in part][-1]

    def broken(self, overlay, name):
        """The test program with `name` taken from `overlay`; its path."""
        files = [name] if name.endswith(".cu") else sorted(self.compile)
        link = self.link
        for file in files:
            entry = self.compile[file]
            command = shlex.split(entry["command"])
            original = command[command.index("-o") + 1]
            target = overlay / (file + ".o")
            command[command.index("-o") + 1] = str(target)
            while "-MF" in command:
                del command[command.index("-MF"):command.index("-MF") + 2]
            command = [c for c in command if c not in ("-MD",)]
            if "-MT" in command:
                del command[command.index("-MT"):command.index("-MT") + 2]
            source = overlay / CUDA / file
            if source.exists():
                command[command.index(entry["file"])] = str(source)
            command.insert(next(i for i, c in enumerate(command) if c.startswith("-I")), f"-I{overlay}")
            made = run(command, cwd=entry["directory"])
            if made.returncode:
                raise SystemExit(f"{file} does not compile:\n{made.stderr[-2000:]}")
            link = link.replace(original, str(target))
        program = overlay / "cuda_on_cpu"
        command = shlex.split(link)
        command[command.index("-o") + 1] = str(program)
        made = run(command, cwd=self.folder)
        if made.returncode:
            raise SystemExit(f"{name} does not link:\n{made.stderr[-2000:]}")
        return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("names", nargs="*", help="parts of the faults' names; default: all")
    arguments = parser.parse_args()
    build = Build(arguments.build.resolve())
    wanted = [m for m in MUTANTS if not arguments.names or any(n in m[0] for n in arguments.names)]
    missed = []
    for name, file, there, instead in wanted:
        text = (ROOT / CUDA / file).read_text()
        if text.count(there) < 1:
            raise SystemExit(f"{file} no longer has what `{name}` breaks: {there!r}")
        with tempfile.TemporaryDirectory() as folder:
            overlay = pathlib.Path(folder)
            (overlay / CUDA).mkdir(parents=True)
            (overlay / CUDA / file).write_text(text.replace(there, instead))
            result = run([build.broken(overlay, file), "cuda"], timeout=900)
        said = [line for line in (result.stdout + result.stderr).splitlines()
                if not line.endswith(" ok") and "cases" not in line]
        print(f"{'found ' if result.returncode else 'MISSED'} {file}: {name}: {said[0].strip() if said else ''}"[:230], flush=True)
        if not result.returncode:
            missed.append(name)
    print(f"{len(wanted) - len(missed)} of {len(wanted)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
