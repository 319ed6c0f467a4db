"""Draws the picture of the README from a finished comparison.

suture compare --dataset cora --clients 5 --out runs/first
python benchmarks/readme_figure.py runs/first docs/images/first-result.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

COLOURS = ["#3b6fb6", "#d9822b", "#3c8250", "#a04a8c", "#b83232"]
OWNERS = 5


def draw_cut(axes: plt.Axes) -> None:
    """A small graph whose owners each keep their piece; the edges between them are recorded nowhere."""
    rng = np.random.default_rng(4)
    centres = np.array([(np.cos(t), np.sin(t)) for t in np.linspace(0.3, 2 * np.pi + 0.3, OWNERS, endpoint=False)])
    places = np.concatenate([centre + rng.normal(scale=0.24, size=(9, 2)) for centre in centres])
    owner = np.repeat(np.arange(OWNERS), 9)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    for a in range(len(places)):
        for b in range(a):
            inside = owner[a] == owner[b]
            if inside and distance[a, b] < 0.33:
                axes.plot(*places[[a, b]].T, color=COLOURS[owner[a]], linewidth=1.2, zorder=1)
            elif not inside and distance[a, b] < 0.62:
                axes.plot(*places[[a, b]].T, color="#999999", linewidth=1.0, linestyle=(0, (3, 3)), zorder=0)
    axes.scatter(*places.T, c=[COLOURS[k] for k in owner], s=38, edgecolors="white", linewidths=0.8, zorder=2)
    axes.set_title("one graph, five owners; dashed edges are lost", fontsize=11)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_curves(axes: plt.Axes, folder: Path) -> None:
    """Mean validation accuracy over seeds, round by round."""
    methods = json.loads((folder / "compare.json").read_text())["methods"]
    seeds = json.loads((folder / "compare.json").read_text())["seeds"]
    for index, method in enumerate(methods):
        files = [folder / f"{method}-seed{seed}" / "metrics.jsonl" for seed in seeds]
        curves = [[json.loads(line)["validation"] for line in file.read_text().splitlines()] for file in files]
        mean = 100 * np.mean(curves, axis=0)
        style = "--" if method in ("local", "global") else "-"
        axes.plot(np.arange(1, len(mean) + 1), mean, style, label=method, linewidth=1.7, color=f"C{index}")
    axes.set_xlabel("round")
    axes.set_ylabel("validation accuracy, %, mean over owners and seeds")
    axes.set_title("Cora, METIS cut into 5, GCN", fontsize=11)
    axes.set_ylim(30, 90)
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize=9, loc="lower right")


def main() -> None:
    folder, target = map(Path, sys.argv[1:3])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=[1, 1.35])
    draw_cut(left)
    draw_curves(right, folder)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
