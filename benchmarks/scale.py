"""Processor time and peak memory of a round of every method, and how both grow with clients, nodes and features.

    python benchmarks/scale.py                                        # every method over every axis: takes hours
    python benchmarks/scale.py --methods fedpub,fedsage_plus --axes clients
    python benchmarks/scale.py --point clients=1000 --methods all     # one size, and whether all hold the bound
    python benchmarks/scale.py --json docs/data/scale.json --out docs/images/scale.svg

Every figure is of a process of its own that loads a planted graph, carries a whole run out (all phases, three rounds, tests,
the run folder) and reads its peak resident size. Seconds are processor time on one thread: of a round with its test, the
median of those after the first; `before` is that of all phases before rounds. Settings are those of the protocol `own`.
An exponent is the slope of log(seconds) over log(size), least squares over an axis's points: 1 is linear. Exit code 1 if a
run fails or is above `--bound`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from planted import planted_graph

DEGREE = 6


@dataclass(frozen=True)
class Size:
    """How large a graph is, and into how many it is cut."""

    clients: int = 100
    nodes: int = 100
    """Of each client."""
    features: int = 64


AXES: dict[str, tuple[int, ...]] = {
    "clients": (100, 300, 1000),
    "nodes": (100, 300, 1000),
    "features": (64, 256, 1024),
}
SHORT = {
    "feddep": ("feddep.pretrain_epochs=2", "feddep.generator_epochs=3"),
    "fedsage_plus": ("fedsage_plus.generator_epochs=3",),
    "locsage_plus": ("locsage_plus.generator_epochs=3",),
}
"""Phases that have an iteration many times over: three of them are enough to see what one takes."""
VARIANTS = {
    "fedggr-nodes": ("fedggr", ("fedggr.codes=nodes",)),
    "fedggr-groups": ("fedggr", ("fedggr.codes=groups",)),
    "fedsage_plus-partners": ("fedsage_plus", ("fedsage_plus.partners=8", *SHORT["fedsage_plus"])),
    "fedpub-near": ("fedpub", ("fedpub.neighbours=20",)),
}
"""Options that are there for large sizes, measured beside the methods as they are."""


def child(name: str, size: Size, extra: list[str], rounds: int, most: int) -> dict[str, Any]:
    """One run in this process, which may compute for `most` seconds, and its figures."""
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    from suture.core.process import peak_bytes, prepare_process

    prepare_process()
    import torch
    from torch_geometric.data import Data

    import suture
    from suture.runs.outcome import Tick

    torch.set_num_threads(1)
    nodes = size.clients * size.nodes
    parts = planted_graph(nodes, nodes * DEGREE // 2, size.clients, size.features, classes=5)
    data = Data(**{key: torch.from_numpy(value) for key, value in parts.items()}, directed=False)
    method, overrides = VARIANTS.get(name, (name, SHORT.get(name, ())))
    ticks: list[tuple[str, float]] = []

    def watch(method: str, seed: int, tick: Tick) -> None:
        ticks.append((tick.phase, time.process_time()))

    with tempfile.TemporaryDirectory() as out:
        started = time.process_time()
        changes = [f"training.rounds={rounds}", *overrides, *extra]
        suture.run(data, method, overrides=changes, out=Path(out) / "run", options=suture.Options(watch=watch))
    spent = [(phase, now - before) for (phase, now), (_, before) in zip(ticks, [("", started), *ticks], strict=False)]
    of_rounds = sorted(seconds for phase, seconds in spent if phase == "round")[: max(1, rounds - 1)]
    return {
        "method": name,
        **asdict(size),
        "seconds": round(of_rounds[len(of_rounds) // 2], 4),
        "before": round(sum(seconds for phase, seconds in spent if phase != "round"), 3),
        "in_all": round(time.process_time() - started, 2),
        "peak_gb": round(peak_bytes() / 1e9, 3),
    }


def measured(name: str, size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a run in a process of its own, or why there are none."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, "--point", *_texts(size)]
    command += ["--rounds", str(options.rounds), "--most", str(options.most)]
    command += [word for text in options.set for word in ("--set", text)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"method": name, **asdict(size), "failed": said[-1][:300]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def exponent(rows: list[dict[str, Any]], axis: str, of: str = "seconds") -> float | None:
    """How a figure grows along an axis; None with fewer than two points."""
    points = [(math.log(row[axis]), math.log(max(row[of], 1e-4))) for row in rows if of in row]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 2)


def along(axis: str, name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of a method along an axis, each printed as soon as it is there."""
    rows = []
    for value in AXES[axis]:
        row = measured(name, replace(Size(), **{axis: value}), options)
        rows.append(row | {"axis": axis})
        _show(row)
        if "failed" in row:
            break
    return rows


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Seconds a round against size, a line a method; of one size, bars of seconds and memory."""
    from matplotlib.figure import Figure

    if not any("axis" in row for row in rows):
        done = sorted((row for row in rows if "seconds" in row), key=lambda row: row["seconds"])
        figure = Figure(figsize=(9, 0.24 * len(done) + 1), layout="constrained")
        for place, of, label in zip(
            figure.subplots(1, 2, sharey=True), ("seconds", "peak_gb"), ("processor seconds a round", "peak GB"), strict=True
        ):
            place.barh([row["method"] for row in done], [row[of] for row in done], color="#4477aa")
            place.set(xlabel=label)
        figure.savefig(file)
        return
    figure = Figure(figsize=(11, 4), layout="constrained")
    names = list(dict.fromkeys(row["method"] for row in rows))
    for place, axis in zip(figure.subplots(1, len(AXES), sharey=True), AXES, strict=True):
        for name in names:
            line = [row for row in rows if row["method"] == name and row["axis"] == axis and "seconds" in row]
            chosen = name in ("fedavg", "fedpub", "fedsage_plus", "fedggr", "feddep", "fedsage")
            style: dict[str, Any] = {"label": name, "linewidth": 1.8} if chosen else {"color": "0.8", "linewidth": 0.8}
            place.loglog([row[axis] for row in line], [row["seconds"] for row in line], marker=".", **style)
        label = {"nodes": "nodes a client", "clients": "clients of 100 nodes", "features": "features"}[axis]
        place.set(xlabel=label, xticks=AXES[axis], xticklabels=AXES[axis])
        place.minorticks_off()
    figure.axes[0].set(ylabel="processor seconds a round")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(file)


def _texts(size: Size) -> list[str]:
    return [f"{key}={value}" for key, value in asdict(size).items()]


def _size(texts: list[str]) -> Size:
    return replace(Size(), **{key: int(value) for key, value in (text.split("=") for text in texts)})


def _show(row: dict[str, Any]) -> None:
    at = f"{row['method']:22} {row['clients']:7,} {row['nodes']:7,} {row['features']:6,}"
    if "failed" in row:
        print(f"{at}  failed: {row['failed']}", flush=True)
    else:
        print(f"{at} {row['seconds']:9.3f} {row['before']:8.2f} {row['in_all']:8.1f} {row['peak_gb']:8.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="all", help="names, or all of them")
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument(
        "--point", nargs="*", metavar="KEY=N", help="one size instead of axes, such as clients=1000 nodes=100"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="other settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=4.0, help="GB that no run may exceed")
    parser.add_argument("--most", type=int, default=600, help="processor seconds after which a run is given up")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--out", type=Path, help="draw them here")
    parser.add_argument("--read", type=Path, help="measure nothing: show and draw the figures of such a file")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, _size(options.point), options.set, options.rounds, options.most)))
        return 0
    if options.read:
        rows = json.loads(options.read.read_text())["runs"]
        for row in rows:
            _show(row)
        if options.out:
            draw(rows, options.out)
        return 0
    names = options.methods.split(",")
    if names == ["all"]:
        from suture.methods import METHODS

        names = [*METHODS, *VARIANTS]
    print(
        f"{'method':22} {'clients':>7} {'nodes':>7} {'feat.':>6} {'s/round':>9} {'before':>8} {'in all':>8} {'peak GB':>8}"
    )
    rows = []
    exponents: dict[str, dict[str, float | None]] = {}
    for name in names:
        if options.point is not None:
            rows.append(measured(name, _size(options.point), options))
            _show(rows[-1])
            continue
        for axis in options.axes.split(","):
            line = along(axis, name, options)
            rows += line
            exponents.setdefault(name, {})[axis] = exponent(line, axis)
        print(f"{name:22} exponents: " + ", ".join(f"{axis} {value}" for axis, value in exponents[name].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"runs": rows, "exponents": exponents}, indent=1) + "\n")
    if options.out:
        draw(rows, options.out)
    return int(any("failed" in row or row["peak_gb"] > options.bound for row in rows))


if __name__ == "__main__":
    sys.exit(main())
