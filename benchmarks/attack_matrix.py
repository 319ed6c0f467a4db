"""Attacks every method on Cora, CiteSeer and Twitch, and writes the matrix into docs/privacy.md.

    python benchmarks/attack_matrix.py [--data-root DIR] [--datasets cora] [--lines "fedavg;fedggr"] [--jobs 2]

A cell is one run, recorded and attacked; it goes into docs/data/attacks.json as soon as it is finished, and cells that are
there are not computed again: delete the file, or a cell of it, to have it anew. Tapes are deleted with their runs. In a cell
of the matrix stands the view that gains most. Every method has a line; other forms of one are added to `BESIDE`.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

prepare_process()

import suture  # noqa: E402
from suture.attacks import trials  # noqa: E402
from suture.attacks.scenes import Scene  # noqa: E402
from suture.core.storage import read_json, write_atomically, write_json  # noqa: E402
from suture.errors import SutureError  # noqa: E402
from suture.methods import METHODS  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAGE, STORE = ROOT / "docs" / "privacy.md", ROOT / "docs" / "data" / "attacks.json"
BEGIN, END = "<!-- attack matrix -->", "<!-- end of attack matrix -->"
SHORT = ["rounds=30", "evaluation.every=10"]
MENDED = ["fedsage_plus.generator_epochs=100"]
KNOWN, ONE = ["partition.boundary=both"], ["fedgcn.fewest=1"]
SILENT = ("local", "locsage", "locsage_plus", "local_gnnk")
"""Methods whose clients send no more than counts and losses."""
BESIDE: dict[str, dict[str, list[str]]] = {
    "fedavg": {
        "DP-SGD": ["training.batch_size=32", "training.dp_sigma=2", "rounds=10"],
        "stitch=2": [*KNOWN, "training.stitch=2"],
        "stitch=2, sigma=0.1": [*KNOWN, "training.stitch=2", "training.stitch_sigma=0.1"],
    },
    "fedsage_plus": {"": MENDED, "answers=exact": [*MENDED, "fedsage_plus.answers=exact"]},
    "feddep": {"as_published": ["feddep.as_published=true"]},
    "fedggr": {"codes=nodes": ["fedggr.codes=nodes"]},
    "fedproto": {"told=counts": ["fedproto.told=counts"]},
    "fedgcn": {
        "": KNOWN,
        "fewest=1": [*KNOWN, *ONE],
        "fewest=1, sigma=0.1": [*KNOWN, *ONE, "fedgcn.clip=1", "fedgcn.sigma=0.1"],
    },
}
"""Of methods that come in several forms: what each is called, and what is set for it; "" is the default."""


def all_lines() -> dict[str, tuple[str, list[str]]]:
    """Of every method that is there: what a line is called, its method, and what is set beside the protocol's values."""
    lines: dict[str, tuple[str, list[str]]] = {}
    for method, kind in METHODS.items():
        if kind.sees_uncut_graph or method in SILENT:
            continue
        for form, values in ({"": []} | BESIDE.get(method, {})).items():
            lines[f"{method}, {form}" if form else method] = (method, values)
    return lines


LINES = all_lines()
DATASETS: dict[str, dict[str, Any]] = {
    "cora": {"protocol": "fedsage-louvain", "clients": 5},
    "citeseer": {"protocol": "fedsage-louvain", "clients": 5},
    "twitch": {"protocol": "own"},
}


def computed(dataset: str, line: str, options: argparse.Namespace) -> dict[str, Any] | str:
    """A cell: findings of all attacks on one run; or why there is none."""
    try:
        return attacked(dataset, line, options)
    except SutureError as why:
        return str(why)


def attacked(dataset: str, line: str, options: argparse.Namespace) -> dict[str, Any]:
    """A cell, however long it takes."""
    method, values = LINES[line]
    begun, spent = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        how = suture.Options(data_root=options.data_root, record=True)
        result = suture.run(dataset, method, overrides=[*SHORT, *values], out=out, seed=0, options=how, **DATASETS[dataset])
        scene = Scene.read(out, options.data_root)
        tried = trials.carry_out(scene, trials.chosen(None, None), 60 * options.minutes)
        found = [one.as_json() for one in trials.in_order(tried)]
    outcome = result.outcome
    told = {"accuracy": outcome.accuracy_client_mean, "epsilon": outcome.epsilon, "delta": outcome.delta}
    used = {"seconds": round(time.perf_counter() - begun, 1), "processor": round(time.process_time() - spent, 1)}
    return {**told, **used, "findings": found}


def shown(cell: dict[str, Any] | None, attack: str) -> str:
    """The view that gains most: success (guess), in bold if it certainly beats the guess."""
    found = [one for one in (cell or {}).get("findings", []) if one["attack"] == attack and one["measured"]]
    if not found:
        return "–"
    most = max(found, key=lambda one: one["measured"]["low"])
    best = most["measured"]
    text = f"{best['success']:.2f} ({best['guess']:.2f})"
    if best["exact"] and attack in ("rows", "codes", "gradients", "sums"):
        text += f", {best['exact'][0]} of {best['exact'][1]}"
    text = f"**{text}**" if best["low"] > 0 else text
    return f"{text}, cut at {most['tried'][0]} of {most['tried'][1]} {most['tried'][2]}" if most["cut"] else text


def matrix(cells: dict[str, Any], dataset: str) -> list[str]:
    """One dataset's table as Markdown; lines that were not computed are left out."""
    lines = [line for line in LINES if f"{dataset}, {line}" in cells]
    if not lines:
        return []
    head = ["method", *trials.ATTACKS, "epsilon, delta"]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for line in lines:
        cell = cells[f"{dataset}, {line}"]
        epsilon = "inf" if cell["epsilon"] is None else f"{cell['epsilon']:.3g}"
        account = "none" if cell["delta"] is None else f"{epsilon}, {cell['delta']:.3g}"
        rows.append(f"| {' | '.join([line, *(shown(cell, attack) for attack in trials.ATTACKS), account])} |")
    return [f"**{dataset}**", "", *rows, ""]


def write_page(cells: dict[str, Any]) -> None:
    """The tables, between their marks in the page."""
    tables = "\n".join(line for dataset in DATASETS for line in matrix(cells, dataset))
    text = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n{END}", PAGE.read_text(), flags=re.DOTALL)
    write_atomically(PAGE, text.encode())


def keep(cells: dict[str, Any], name: str, cell: dict[str, Any] | str) -> None:
    """Write a cell down, and say how long it took."""
    if isinstance(cell, str):
        print(f"{name}: {cell}", flush=True)
        return
    cells[name] = cell
    write_json(STORE, cells)
    print(f"{name}: {cell['seconds']} s, of the processor {cell['processor']} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--lines", help="separated by ;")
    parser.add_argument("--minutes", type=float, default=15.0, help="for the attacks of one cell; few take more than two")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="cells at the same time")
    options = parser.parse_args()
    cells: dict[str, Any] = dict(read_json(STORE, "store of attacks")) if STORE.exists() else {}
    STORE.parent.mkdir(exist_ok=True)
    lines = options.lines.split(";") if options.lines else list(LINES)
    missing = [(d, line) for d in options.datasets.split(",") for line in lines if f"{d}, {line}" not in cells]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        begun = [(dataset, line, pool.submit(computed, dataset, line, options)) for dataset, line in missing]
        for dataset, line, cell in begun:
            keep(cells, f"{dataset}, {line}", cell.result())
    write_page(cells)


if __name__ == "__main__":
    main()
