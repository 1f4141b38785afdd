#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what bench_weight_error measures: docs/pooled-gradients.md with its picture. Needs matplotlib.

    python bench/weight_error.py
"""
import argparse
import collections
import csv
import datetime
import math
import pathlib
import subprocess

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = {"pool:size=2": "pool 2 x 2", "pool:size=4": "pool 4 x 4", "pool:size=8": "pool 8 x 8",
         "quantize:bits=8": "8 bit", "quantize:bits=4": "4 bit", "quantize:bits=2": "2 bit",
         "pool:size=2+quantize:bits=8": "pool 2 x 2 + 8 bit",
         "pool:size=2+quantize:bits=4": "pool 2 x 2 + 4 bit"}
# Labels of points that lie close: offsets and side.
LABELS = {"pool:size=4": (-8, 4, "right"), "quantize:bits=2": (8, 4, "left"), "pool:size=8": (0, 9, "center"),
          "pool:size=2+quantize:bits=8": (-8, -13, "right"), "pool:size=2+quantize:bits=4": (4, -14, "center"),
          "pool:size=2": (0, 9, "center")}


def table(rows, ways, layers):
    lines = ["| layer | " + " | ".join(NAMES[w] for w in ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for layer in layers:
        lines.append(f"| {layer} | " + " | ".join(f"{float(rows[layer, w]['relative error']):.3f}" for w in ways) + " |")
    mean = {w: math.sqrt(sum(float(rows[l, w]["relative error"]) ** 2 for l in layers) / len(layers)) for w in ways}
    held = {w: sum(int(rows[l, w]["bytes"]) for l in layers) for w in ways}
    kept = sum(int(rows[l, ways[0]]["bytes if kept"]) for l in layers)
    lines.append("| **root mean square** | " + " | ".join(f"**{mean[w]:.3f}**" for w in ways) + " |")
    lines.append("| bytes held | " + " | ".join(f"{held[w]:,}" for w in ways) + " |")
    lines.append("| smaller | " + " | ".join(f"{kept / held[w]:.1f}x" for w in ways) + " |")
    return lines, mean, {w: kept / held[w] for w in ways}


def picture(path, rows, ways, layers, mean, smaller):
    colours = dict(zip(ways, ["#0072b2", "#56b4e9", "#9ecae1", "#3f4a55", "#d55e00", "#e69f00", "#009e73", "#cc79a7"]))
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "compact", "svg.fonttype": "none"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.6), width_ratios=[3, 2], layout="constrained")
    for w in ways:
        left.plot(range(len(layers)), [float(rows[l, w]["relative error"]) for l in layers],
                  marker="o", markersize=4, color=colours[w], label=NAMES[w])
        right.scatter(smaller[w], mean[w], s=60, color=colours[w])
        x, y, side = LABELS.get(w, (8, -4, "left"))
        right.annotate(NAMES[w], (smaller[w], mean[w]), xytext=(x, y), textcoords="offset points", ha=side)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_ylim(.002, 2)
        axes.set_yticks([.003, .01, .03, .1, .3, 1], ["0.003", "0.01", "0.03", "0.1", "0.3", "1"])
        axes.minorticks_off()
        axes.grid(alpha=.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_xticks(range(len(layers)), layers, rotation=60, ha="right")
    left.set_ylabel("relative error of the weight's gradient")
    figure.legend(loc="outside lower left", ncols=4, frameon=False)
    right.set_xscale("log", base=2)
    right.set_xlim(1.8, 110)
    right.set_xticks([2, 4, 8, 16, 32, 64], [f"{n}x" for n in (2, 4, 8, 16, 32, 64)])
    right.set_xlabel("smaller than f32")
    right.set_ylabel("root mean square over layers")
    figure.savefig(path, metadata={"Date": None})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/bench/bench_weight_error"))
    p.add_argument("--output", type=pathlib.Path, default=ROOT / "docs", help="folder of the page and its picture")
    a = p.parse_args()
    done = subprocess.run([a.program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    rows = {(r["layer"], r["treatment"]): r for r in csv.DictReader(done.stdout.splitlines())}
    layers, ways = (list(collections.OrderedDict.fromkeys(key[i] for key in rows)) for i in (0, 1))
    lines, mean, smaller = table(rows, ways, layers)
    a.output.mkdir(parents=True, exist_ok=True)
    picture(a.output / "pooled-gradients.svg", rows, ways, layers, mean, smaller)
    page = ["# Gradients of convolutions from pooled and quantized inputs", "",
            f"{datetime.date.today()}, `bench/weight_error.py`: ResNet-20 with its published weights, 128 images of "
            "CIFAR-10 in training mode. What the convolutions of the blocks read is held as the column says; all "
            "other gradients stay exact. Relative error: the root of E|g' - g|² / |g|² over eight draws of the "
            "random bits.", "", "![relative error by layer, and against bytes](pooled-gradients.svg)", "", *lines]
    (a.output / "pooled-gradients.md").write_text("\n".join(page) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
