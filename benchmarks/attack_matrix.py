"""Attacks every method on Cora, CiteSeer and Twitch, and writes the matrix into docs/privacy.md.

    python benchmarks/attack_matrix.py [--data-root DIR] [--datasets cora] [--lines "fedavg;fedggr"] [--jobs 2] [--anew]

A cell is one run, recorded and attacked, in a process of its own with one thread; it goes into docs/data/attacks.json as
soon as it is finished. Cells that are there with the same settings are not computed again, unless `--anew` says so. Time is
limited by what a cell takes of the processor, so that a busy machine cuts nothing. Tapes are deleted with their runs. In a
cell of the matrix stands the view that gains most. Every method has a line; other forms of one are added to `BESIDE`.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

# One thread for each cell, also of what numpy computes with; before it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_process()

import suture  # noqa: E402
from suture.attacks import trials  # noqa: E402
from suture.attacks.scenes import Scene  # noqa: E402
from suture.core.forks import Ended, Job, Link, side_by_side  # noqa: E402
from suture.core.storage import read_json, write_atomically, write_json  # noqa: E402
from suture.errors import SutureError  # noqa: E402
from suture.methods import METHODS  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAGE, STORE = ROOT / "docs" / "privacy.md", ROOT / "docs" / "data" / "attacks.json"
BEGIN, END = "<!-- attack matrix -->", "<!-- end of attack matrix -->"
SHORT = ["rounds=30", "evaluation.every=10"]
MENDED = ["fedsage_plus.generator_epochs=100"]
KNOWN, ONE = ["partition.boundary=both"], ["fedgcn.fewest=1"]
SECURE = "engine=sealed"
"""Among what is set for a line: the server is shown sums alone, as secure aggregation does it between owners."""
SILENT = ("local", "locsage", "locsage_plus", "local_gnnk")
"""Methods whose clients send no more than counts and losses."""
BESIDE: dict[str, dict[str, list[str]]] = {
    "fedavg": {
        "DP-SGD": ["training.batch_size=32", "training.dp_sigma=2", "rounds=10"],
        "stitch=2": [*KNOWN, "training.stitch=2"],
        "stitch=2, sigma=0.1": [*KNOWN, "training.stitch=2", "training.stitch_sigma=0.1"],
        "secure sums": [SECURE],
    },
    "suture": {"secure sums": [SECURE]},
    "fedgram": {"secure sums": [SECURE]},
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


def attacked(dataset: str, line: str, options: argparse.Namespace, link: Link) -> dict[str, Any]:
    """A cell: findings of all attacks on one run."""
    method, values = LINES[line]
    begun, spent = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        engine = "sealed" if SECURE in values else "embedded"
        how = suture.Options(data_root=options.data_root, record=True, engine=engine)
        given = [*SHORT, *(value for value in values if value != SECURE)]
        result = suture.run(dataset, method, overrides=given, out=out, seed=0, options=how, **DATASETS[dataset])
        scene = Scene.read(out, options.data_root)
        tried = trials.carry_out(scene, trials.chosen(None, None), 60 * options.minutes, now=time.process_time)
        found = [one.as_json() for one in trials.in_order(tried)]
    outcome = result.outcome
    told = {"accuracy": outcome.accuracy_client_mean, "epsilon": outcome.epsilon, "delta": outcome.delta}
    used = {"seconds": round(time.perf_counter() - begun, 1), "processor": round(time.process_time() - spent, 1)}
    return {"set": settings(dataset, line), **told, **used, "findings": found}


def settings(dataset: str, line: str) -> dict[str, Any]:
    """All that a cell's run is given, to know one that was made otherwise."""
    return {**DATASETS[dataset], "overrides": [*SHORT, *LINES[line][1]]}


def shown(cell: dict[str, Any] | None, attack: str) -> str:
    """Success (guess) of the view that gains most, named unless it is the server's; bold if it certainly beats the guess."""
    found = [one for one in (cell or {}).get("findings", []) if one["attack"] == attack and one["measured"]]
    if not found:
        return "–"
    most = max(found, key=lambda one: one["measured"]["low"])
    best = most["measured"]
    text = f"{best['success']:.2f} ({best['guess']:.2f})"
    if best["exact"] and attack in ("rows", "codes", "gradients", "sums"):
        text += f", {best['exact'][0]} of {best['exact'][1]}"
    text += "" if most["view"] == "server" else f" {most['view']}"
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


def in_words(cells: dict[str, Any]) -> str:
    """How much there is, and what it took."""
    there = [cells[name] for dataset in DATASETS for line in LINES if (name := f"{dataset}, {line}") in cells]
    missing = len(DATASETS) * len(LINES) - len(there)
    each = [cell["processor"] / 60 for cell in there]
    cut = sum(any(one["cut"] for one in cell["findings"]) for cell in there)
    text = f"{len(there)} cells took {sum(each):.0f} minutes of one processor, the longest {max(each):.0f}, "
    text += f"so {sum(each) / 2:.0f} minutes with two. "
    text += f"In {cut} of them an attack was cut. " if cut else "No attack was cut. "
    if older := _older(cells):
        text += f"Made by an earlier version, and made anew by the next call: {'; '.join(older)}. "
    return text + (_outstanding(cells, sum(each)) if missing else "No cell is missing.")


def _older(cells: dict[str, Any]) -> list[str]:
    """Cells that were not made with the settings of today."""
    every = [(dataset, line) for dataset in DATASETS for line in LINES]
    return [name for one in every if (name := ", ".join(one)) in cells and cells[name].get("set") != settings(*one)]


def _outstanding(cells: dict[str, Any], minutes: float) -> str:
    """Which cells are missing, and how long all would take if these took as long as others of their dataset."""
    gaps, more = [], 0.0
    for dataset in DATASETS:
        there = [cells[name]["processor"] / 60 for line in LINES if (name := f"{dataset}, {line}") in cells]
        lacking = [line for line in LINES if f"{dataset}, {line}" not in cells]
        more += len(lacking) * (sum(there) / len(there) if there else 0.0)
        gaps += [f"{dataset} ({'; '.join(lacking)})"] if lacking else []
    whole = f"all of them would take about {(minutes + more) / 2:.0f} minutes with two processors"
    return f"If missing cells took as long as others of their dataset, {whole}. **Missing**: {', '.join(gaps)}."


def write_page(cells: dict[str, Any]) -> None:
    """The tables, between their marks in the page."""
    tables = "\n".join([in_words(cells), "", *(line for dataset in DATASETS for line in matrix(cells, dataset))])
    text = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n{END}", PAGE.read_text(), flags=re.DOTALL)
    write_atomically(PAGE, text.encode())


def keep(cells: dict[str, Any], end: Ended[dict[str, Any]]) -> None:
    """Write a cell down, and say how long it took; or why there is none."""
    if end.result is None:
        print(f"{end.name}: {end.error}", flush=True)
        if not isinstance(end.error, SutureError):
            print("\n".join(getattr(end.error, "__notes__", ())), flush=True)
        return
    cells[end.name] = end.result
    write_json(STORE, cells)
    write_page(cells)
    print(f"{end.name}: {end.result['seconds']} s, of the processor {end.result['processor']} s", flush=True)


def chosen(cells: dict[str, Any], options: argparse.Namespace) -> list[tuple[str, str]]:
    """The cells that are to be computed."""
    datasets: Sequence[str] = options.datasets.split(",")
    lines: Sequence[str] = options.lines.split(";") if options.lines else list(LINES)
    asked = [(dataset, line) for dataset in datasets for line in lines]
    if wrong := [name for names, known in ((datasets, DATASETS), (lines, LINES)) for name in names if name not in known]:
        raise SystemExit(f"there is no {wrong[0]!r}; there are {', '.join(DATASETS)} and the lines {'; '.join(LINES)}")
    return [one for one in asked if options.anew or cells.get(", ".join(one), {}).get("set") != settings(*one)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--lines", help="separated by ;")
    parser.add_argument("--minutes", type=float, default=3.0, help="of the processor, for the attacks of one cell")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="cells at the same time")
    parser.add_argument("--anew", action="store_true", help="compute cells again that are there")
    options = parser.parse_args()
    cells: dict[str, Any] = dict(read_json(STORE, "store of attacks")) if STORE.exists() else {}
    STORE.parent.mkdir(exist_ok=True)
    jobs = (Job(", ".join(one), partial(attacked, *one, options)) for one in chosen(cells, options))
    side_by_side(jobs, at_once=options.jobs, threads=1, ended=lambda end: keep(cells, end))


if __name__ == "__main__":
    main()
