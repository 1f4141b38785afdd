#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/step.py measured, step time against peak memory: docs/steps-light.svg and
docs/steps-dark.svg, the README's picture. Needs matplotlib.

    python bench/step_picture.py bench/results/step-bf16.json
"""
import argparse
import json
import pathlib
import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend

ROOT = pathlib.Path(__file__).resolve().parent.parent
THEMES = {
    "light": {"text": "#24292f", "grid": "#d8dee4", "rival": "#6e7781", "ours": "#0a7d6c", "lossy": "#b35900"},
    "dark": {"text": "#e6edf3", "grid": "#30363d", "rival": "#9198a1", "ours": "#3fc7b0", "lossy": "#f0a04b"},
}
# Name in the file: name in the picture, kind, where its label stands (points right, points up).
ROWS = {
    "eager": ("PyTorch", "rival", (-8, -16)),
    "torch.compile": ("torch.compile", "rival", (8, 6)),
    "checkpointing": ("checkpointing", "rival", (8, 6)),
    "off": ("off", "ours", (8, -12)),
    "exact": ("exact", "ours", (8, 4)),
    "every block recomputed": ("recompute", "ours", (-9, 4)),
    "gact-l1": ("gact-l1", "lossy", (-9, -14)),
    "compact n/8": ("compact, n/8", "lossy", (8, -13)),
}


def draw(group, theme, path):
    colors = THEMES[theme]
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "steps", "font.size": 11, "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    seconds = {name: statistics.median(s) for name, s in group["step_seconds"].items()}
    peaks = {name: p / 2**20 for name, p in group["peak_bytes"].items()}
    auto = sorted((peaks[name], seconds[name]) for name in peaks if name.startswith("auto"))
    if auto:
        axes.plot(*zip(*auto), color=colors["ours"], linewidth=2, marker="o", markersize=3.5, zorder=2)
        axes.annotate("auto, under a budget", auto[1], (10, 9), textcoords="offset points", color=colors["ours"], ha="left")
    for name, (label, kind, offset) in ROWS.items():
        if name not in peaks:
            continue
        marker = {"rival": "s", "ours": "o", "lossy": "D"}[kind]
        axes.scatter(peaks[name], seconds[name], s=52, marker=marker, color=colors[kind], zorder=3)
        side = "left" if offset[0] > 0 else "right"
        axes.annotate(label, (peaks[name], seconds[name]), offset, textcoords="offset points", color=colors[kind], ha=side)
    axes.axhline(group["floor_seconds"], color=colors["grid"], linewidth=1.2, linestyle="--", zorder=1)
    axes.annotate("matrix products alone", (axes.get_xlim()[1], group["floor_seconds"]), (-2, 4), textcoords="offset points",
                  color=colors["rival"], ha="right", fontsize=9.5)  # fmt: skip
    axes.set_xlim(0, max(peaks.values()) * 1.04)
    axes.set_ylim(0, max(seconds.values()) * 1.12)
    axes.set_xlabel("peak memory of a step, MiB")
    axes.set_ylabel("seconds a step")
    axes.grid(color=colors["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colors["text"], length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(colors["text"])
    figure.savefig(path, metadata={"Date": None}, transparent=True)
    plt.close(figure)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("figures", type=pathlib.Path, nargs="?", default=ROOT / "bench/results/step-bf16.json")
    p.add_argument("--group", default="bf16x16")
    p.add_argument("--output", type=pathlib.Path, default=ROOT / "docs", help="folder of the two pictures")
    a = p.parse_args()
    group = json.loads(a.figures.read_text())[a.group]
    for theme in THEMES:
        draw(group, theme, a.output / f"steps-{theme}.svg")


if __name__ == "__main__":
    main()
