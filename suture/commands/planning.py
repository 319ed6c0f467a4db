"""`--dry-run`: what would be done, and roughly what would be sent; nothing is written.

What the graph is, the catalogue or a graph folder's own description says; only a graph that has neither is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from suture.graph import datasets
from suture.graph.cut import load_manifest
from suture.graph.data import num_classes
from suture.graph.partition import CLIENTS
from suture.graph.target import Kind
from suture.method import Method, Task
from suture.report import console
from suture.report.text import byte_size, count, listed
from suture.runs import origin
from suture.runs.counting import KINDS, kind_of
from suture.runs.fitting import fitting
from suture.runs.plan import Plan


@dataclass(frozen=True)
class _About:
    """What must be known of a graph to say what would be sent."""

    features: int
    outputs: int
    owners: int = 0
    """0: it names none."""
    kind: Kind = "class"
    graphless: bool = False


def fitting_methods(made: Plan, data_root: Path | None) -> tuple[Plan, tuple[str, ...]]:
    """The plan without methods that do not fit its graph, and a line on each; looks no further than `dry_run`."""
    about = _about(made.dataset, made.protocol.partition.clients == 0, data_root)
    return fitting(made, about.kind, about.graphless)


def dry_run(made: Plan, out: Path, manifest: Path | None, data_root: Path | None = None) -> None:
    """Print the resolved configuration, the runs and their traffic."""
    about = _about(made.dataset, made.protocol.partition.clients == 0, data_root)
    made, left_out = fitting(made, about.kind, about.graphless)
    screen = console.results()
    screen.out(made.config(), end="")
    runs = len(made.methods) * len(made.seeds)
    clients = made.protocol.partition.clients or about.owners or CLIENTS
    if manifest:
        clients = len(load_manifest(manifest).partition.ids)
    table = console.grid("method", "rounds", "handed out per round", "in all, each way", numbers_from=1)
    for method in made.methods:
        table.add_row(method.name, *_traffic(method, made, clients, about))
    screen.print()
    for line in (
        f"Would do {count(runs, 'run')} on {origin.label(made.dataset)} with {count(clients, 'client')}: "
        f"{', '.join(made.names)}; {listed('seed', made.seeds)}.",
        f"Cut: {_cut(made, about, manifest)}.",
        *(f"{line[0].upper()}{line[1:]}." for line in left_out),
        f"Folder: {out}",
        "Traffic of one run, roughly (a method may add exchanges of its own):",
    ):
        screen.print(Text(line))
    screen.print(table)


def _cut(made: Plan, about: _About, manifest: Path | None) -> str:
    if manifest:
        return f"the one in {manifest}, for every seed"
    if made.protocol.partition.kind == "auto" and about.owners:
        return "the owners that the graph names, for every seed"
    return "a new one for each seed"


def _traffic(method: Method[Any, Any], made: Plan, clients: int, about: _About) -> tuple[str, str, str]:
    rounds = sum(phase.times for phase in method.plan() if phase.evaluate)
    if method.sees_uncut_graph:
        return str(rounds), "nothing: central", "nothing"
    outputs = made.protocol.model.hidden if made.protocol.task == "link" else about.outputs
    task = Task(about.features, outputs, made.seeds[0])
    # What the server hands out in a round is about what comes back.
    each = sum(method.deploy(method.init_server(task), ("client-0",)).nbytes())
    asked = max(1, round(method.training.participation * clients))
    return str(rounds), f"{byte_size(each)} to {count(asked, 'client')}", byte_size(each * asked * rounds)


def _about(dataset: str, count_owners: bool, data_root: Path | None) -> _About:
    if origin.is_folder(dataset):
        return _about_folder(dataset)
    about = datasets.about(dataset)
    if not about.nodes or (count_owners and not about.raw):  # made by a function: only the graph itself can tell
        data = origin.load(dataset, data_root)
        owners = 0 if data.get("client") is None else int(data.client.unique().numel())
        return _About(int(data.num_features), num_classes(data), owners, kind_of(data), bool(data.get("graphless")))
    given = {} if about.raw else datasets.arguments(dataset)
    communities = given.get("clients")
    classes = len(communities) if isinstance(communities, tuple) else given.get("classes", about.classes)
    return _About(int(str(given.get("features", about.features))), int(str(classes)), len(about.owners))


def _about_folder(path: str) -> _About:
    from suture.tables.folder import GraphFolder

    folder = GraphFolder.read(path, check=False)
    schema = folder.schema
    outputs = len(schema.roles.label) if schema.task == "regression" else len(schema.classes)
    sizes = (len(schema.feature_names), max(outputs, 1), len(folder.owners))
    return _About(*sizes, KINDS[schema.task], bool(folder.graphless))
