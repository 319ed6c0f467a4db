"""`--dry-run`: what would be done, and roughly what would be sent, without touching data or disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from suture.graph import datasets
from suture.graph.cut import load_manifest
from suture.graph.data import num_classes
from suture.method import Method, Task
from suture.report import console
from suture.report.text import byte_size, count, listed
from suture.runs.plan import Plan


def dry_run(made: Plan, out: Path, manifest: Path | None) -> None:
    """Print the resolved configuration, the runs and their traffic."""
    screen = console.results()
    screen.out(made.config(), end="")
    runs = len(made.methods) * len(made.seeds)
    clients = len(load_manifest(manifest).partition.ids) if manifest else made.protocol.partition.clients
    table = console.grid("method", "rounds", "handed out per round", "in all, each way", numbers_from=1)
    for method in made.methods:
        table.add_row(method.name, *_traffic(method, made, clients))
    screen.print()
    for line in (
        f"Would do {count(runs, 'run')} on {made.dataset} with {count(clients, 'client')}: "
        f"{', '.join(made.names)}; {listed('seed', made.seeds)}.",
        f"Cut: {f'the one in {manifest}, for every seed' if manifest else 'a new one for each seed'}.",
        f"Folder: {out}",
        "Traffic of one run, roughly (a method may add exchanges of its own):",
    ):
        screen.print(Text(line))
    screen.print(table)


def _traffic(method: Method[Any, Any], made: Plan, clients: int) -> tuple[str, str, str]:
    rounds = sum(phase.times for phase in method.plan() if phase.evaluate)
    if method.sees_uncut_graph:
        return str(rounds), "nothing: central", "nothing"
    features, classes = _sizes(made.dataset)
    outputs = made.protocol.model.hidden if made.protocol.task == "link" else classes
    task = Task(features, outputs, made.seeds[0])
    # What the server hands out in a round is about what comes back.
    each = sum(method.deploy(method.init_server(task), ("client-0",)).nbytes())
    asked = max(1, round(method.training.participation * clients))
    return str(rounds), f"{byte_size(each)} to {count(asked, 'client')}", byte_size(each * asked * rounds)


def _sizes(dataset: str) -> tuple[int, int]:
    """Features and classes, as the catalogue or the arguments of a generated graph say."""
    about = datasets.about(dataset)
    if not about.nodes:  # somebody else's: only the graph itself can tell
        data = datasets.load(dataset)
        return int(data.num_features), num_classes(data)
    given = {} if about.raw else datasets.arguments(dataset)
    communities = given.get("clients")
    classes = len(communities) if isinstance(communities, tuple) else given.get("classes", about.classes)
    return int(str(given.get("features", about.features))), int(str(classes))
