"""Runs the cells of a paper's table and prints ours beside the published ones as Markdown.

    python benchmarks/paper_tables.py --protocol fedpub-disjoint --datasets cora,citeseer --clients 5,10,20 \
        --methods local,fedavg,fedpub --store results.json [--paper paper_results.csv --paper-name fedpub] [--data-root DIR]

Every finished run goes into the store at once, and runs that are there already are not repeated: the command can be
stopped and started again, and a table grows as methods join. `--variant` names runs made with other settings (`--set`), as
the paper's `variant` column does; `--paper-setting` is the name of the protocol in the paper's file, if it differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path

from suture.core.process import prepare_process

prepare_process()

import suture  # noqa: E402
from suture.core.storage import write_json  # noqa: E402

Cell = tuple[str, str, str, int, str]
"""Protocol, variant, dataset, clients, method."""


def load_store(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text())["runs"] if path.exists() else []


def cell_of(run: dict[str, object]) -> Cell:
    variant = str(run.get("variant", ""))
    return str(run["protocol"]), variant, str(run["dataset"]), int(str(run["clients"])), str(run["method"])


def wanted_cell(options: argparse.Namespace, dataset: str, clients: int, method: str) -> Cell:
    return options.protocol, options.variant, dataset, clients, method


def run_missing(options: argparse.Namespace, runs: list[dict[str, object]]) -> None:
    for dataset in options.datasets.split(","):
        for clients in map(int, options.clients.split(",")):
            for seed in map(int, options.seeds.split(",")):
                wanted = options.methods.split(",")
                done = {(cell_of(run), run["seed"]) for run in runs}
                missing = [m for m in wanted if (wanted_cell(options, dataset, clients, m), seed) not in done]
                if not missing:
                    continue
                comparison = suture.compare(
                    dataset,
                    missing,
                    protocol=options.protocol,
                    clients=clients,
                    seeds=[seed],
                    overrides=options.set,
                    options=suture.Options(data_root=options.data_root),
                )
                label = {"variant": options.variant} if options.variant else {}
                runs.extend({**run, **label} for run in comparison.as_json())
                write_json(options.store, {"runs": runs})
                for run in comparison.outcomes:
                    figures = f"{run.accuracy_client_mean:.4f} {run.accuracy_global or 0:.4f}"
                    print(dataset, clients, seed, run.method, figures, f"{run.seconds:.0f}s", file=sys.stderr, flush=True)


def published(options: argparse.Namespace) -> dict[Cell, tuple[float, str]]:
    if options.paper is None:
        return {}
    found: dict[Cell, tuple[float, str]] = {}
    with options.paper.open() as file:
        for row in csv.DictReader(file):
            fits = row["paper"] == options.paper_name and row["table"] == options.paper_table
            fits = fits and row["variant"] == options.variant
            if fits and row["setting"] == (options.paper_setting or options.protocol) and row["clients"]:
                key = wanted_cell(options, row["dataset"], int(row["clients"]), row["method"])
                found[key] = (float(row["mean"]), row["std"])
    return found


def table(options: argparse.Namespace, runs: list[dict[str, object]]) -> str:
    paper = published(options)
    cells: dict[Cell, list[float]] = {}
    for run in runs:
        value = run[options.column]
        if isinstance(value, float):
            cells.setdefault(cell_of(run), []).append(value)
    sizes = [int(size) for size in options.clients.split(",")]
    lines = []
    for dataset in options.datasets.split(","):
        lines += ["", f"**{dataset}**", "", "| method | " + " | ".join(f"{s} clients | paper" for s in sizes) + " |"]
        lines.append("|---|" + "---|---|" * len(sizes))
        for method in options.methods.split(","):
            row = []
            for size in sizes:
                key = wanted_cell(options, dataset, size, method)
                values = cells.get(key)
                spread = statistics.stdev(values) if values and len(values) > 1 else 0.0
                row.append(f"{100 * statistics.fmean(values):.2f} ± {100 * spread:.2f}" if values else "")
                mean_std = paper.get(key)
                row.append(f"{100 * mean_std[0]:.2f}" if mean_std else "")
            lines.append(f"| {method} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ours beside a paper's table.")
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--datasets", default="cora")
    parser.add_argument("--clients", default="10")
    parser.add_argument("--methods", default="local,fedavg")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--column", default="accuracy_client_mean")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--paper", type=Path, default=None)
    parser.add_argument("--paper-name", default="fedpub")
    parser.add_argument("--paper-table", default="Table 2")
    parser.add_argument("--paper-setting", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--only-print", action="store_true")
    options = parser.parse_args()
    runs = load_store(options.store)
    if not options.only_print:
        run_missing(options, runs)
    print(table(options, runs))


if __name__ == "__main__":
    main()
