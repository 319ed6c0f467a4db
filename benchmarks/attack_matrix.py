"""Attacks every method on Cora, CiteSeer and Twitch, and writes the matrix into docs/privacy.md.

    python benchmarks/attack_matrix.py [--data-root DIR] [--datasets cora] [--lines "fedavg;fedggr"] [--minutes 2]

A cell is one run, recorded and attacked; it goes into docs/data/attacks.json as soon as it is finished, and cells that are
there are not computed again. Tapes are deleted with their runs. In a cell of the matrix stands the view that gains most.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

prepare_process()

import suture  # noqa: E402
from suture.attacks import trials  # noqa: E402
from suture.attacks.scenes import Scene  # noqa: E402
from suture.core.storage import read_json, write_atomically, write_json  # noqa: E402
from suture.errors import SutureError  # noqa: E402
from suture.methods import DOOR, own_fields  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAGE, STORE = ROOT / "docs" / "privacy.md", ROOT / "docs" / "data" / "attacks.json"
BEGIN, END = "<!-- attack matrix -->", "<!-- end of attack matrix -->"
SHORT = ["rounds=30", "evaluation.every=10"]
LINES: dict[str, tuple[str, list[str]]] = {
    "fedavg": ("fedavg", []),
    "fedavg, DP-SGD": ("fedavg", ["training.batch_size=32", "training.dp_sigma=2", "rounds=10"]),
    "fedsage": ("fedsage", []),
    "fedsage_plus": ("fedsage_plus", ["fedsage_plus.generator_epochs=100"]),
    "fedsage_plus, answers=exact": (
        "fedsage_plus",
        ["fedsage_plus.generator_epochs=100", "fedsage_plus.answers=exact"],
    ),
    "feddep": ("feddep", []),
    "feddep, as_published": ("feddep", ["feddep.as_published=true"]),
    "fedggr": ("fedggr", []),
    "fedggr, codes=nodes": ("fedggr", ["fedggr.codes=nodes"]),
    "fedpub": ("fedpub", []),
    "fedgls": ("fedgls", []),
    "fedproto": ("fedproto", []),
    "fedproto, told=counts": ("fedproto", ["fedproto.told=counts"]),
    "fedgnn": ("fedgnn", []),
    "gcfl": ("gcfl", []),
}
"""What a line is called, its method, and what is set beside the protocol's values."""
DATASETS: dict[str, dict[str, Any]] = {
    "cora": {"protocol": "fedsage-louvain", "clients": 5},
    "citeseer": {"protocol": "fedsage-louvain", "clients": 5},
    "twitch": {"protocol": "own"},
}


def is_known(line: str) -> bool:
    """Whether this version has the settings that a line asks for."""
    method, values = LINES[line]
    own = [value.split("=")[0].split(".")[1] for value in values if value.startswith(f"{method}.")]
    return set(own) <= own_fields(DOOR.recall(method))


def computed(dataset: str, line: str, options: argparse.Namespace) -> dict[str, Any]:
    """A cell: findings of all attacks on one run."""
    method, values = LINES[line]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        how = suture.Options(data_root=options.data_root, record=True)
        result = suture.run(dataset, method, overrides=[*SHORT, *values], out=out, seed=0, options=how, **DATASETS[dataset])
        scene = Scene.read(out, options.data_root)
        found = [one.as_json() for one in trials.carry_out(scene, trials.chosen(None, None), 60 * options.minutes)]
    outcome = result.outcome
    told = {"accuracy": outcome.accuracy_client_mean, "epsilon": outcome.epsilon, "delta": outcome.delta}
    return {**told, "seconds": round(time.perf_counter() - begun, 1), "findings": found}


def shown(cell: dict[str, Any] | None, attack: str) -> str:
    """The view that gains most: success (guess), in bold if it certainly beats the guess."""
    found = [one for one in (cell or {}).get("findings", []) if one["attack"] == attack and one["measured"]]
    if not found:
        return "–"
    best = max(found, key=lambda one: one["measured"]["low"])["measured"]
    text = f"{best['success']:.2f} ({best['guess']:.2f})"
    if best["exact"] and attack in ("rows", "codes", "gradients"):
        text += f", {best['exact'][0]} of {best['exact'][1]}"
    return f"**{text}**" if best["low"] > 0 else text


def matrix(cells: dict[str, Any], dataset: str) -> list[str]:
    """One dataset's table as Markdown; lines that were not computed are left out."""
    lines = [line for line in LINES if f"{dataset}, {line}" in cells]
    if not lines:
        return []
    head = ["method", *trials.ATTACKS, "epsilon"]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for line in lines:
        cell = cells[f"{dataset}, {line}"]
        epsilon = "none" if cell["delta"] is None else "inf" if cell["epsilon"] is None else f"{cell['epsilon']:.3g}"
        rows.append(f"| {' | '.join([line, *(shown(cell, attack) for attack in trials.ATTACKS), epsilon])} |")
    return [f"**{dataset}**", "", *rows, ""]


def write_page(cells: dict[str, Any]) -> None:
    """The tables, between their marks in the page."""
    tables = "\n".join(line for dataset in DATASETS for line in matrix(cells, dataset))
    text = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n{END}", PAGE.read_text(), flags=re.DOTALL)
    write_atomically(PAGE, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--lines", help="separated by ;")
    parser.add_argument("--minutes", type=float, default=2.0, help="for the attacks of one cell")
    options = parser.parse_args()
    cells: dict[str, Any] = dict(read_json(STORE, "store of attacks")) if STORE.exists() else {}
    for dataset in options.datasets.split(","):
        for line in options.lines.split(";") if options.lines else LINES:
            name = f"{dataset}, {line}"
            if name in cells:
                continue
            if not is_known(line):
                print(f"{name}: this version has no such setting, left out", flush=True)
                continue
            try:
                cells[name] = computed(dataset, line, options)
            except SutureError as why:
                print(f"{name}: {why}", flush=True)
                continue
            write_json(STORE, cells)
            print(f"{name}: {cells[name]['seconds']} s", flush=True)
    write_page(cells)


if __name__ == "__main__":
    main()
