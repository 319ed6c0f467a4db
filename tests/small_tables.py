"""A small graph in tables, imported: what tests of prediction and export train on, and nodes that came later."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from suture.tables import GraphFolder, Tables, Wishes, import_tables, read_schema
from suture.tables.schema import Roles

OWNERS = ("north", "south", "west")


@dataclass(frozen=True)
class Kind:
    """What the tables are like."""

    task: str = "classification"
    directed: bool = False
    weighted: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return ("rich", "old") if self.task == "multi-label" else ("label",)

    @property
    def wishes(self) -> Wishes:
        roles = Roles(("id",), self.labels, "owner", None, ("a",), ("b",), "w" if self.weighted else None)
        return Wishes(roles=roles, task=self.task, directed=self.directed or None, min_count=1)


def write_tables(
    out: Path,
    kind: Kind,
    first: int = 0,
    nodes: int = 90,
    seed: int = 0,
    owners: tuple[str, ...] = OWNERS,
    crossing: int = 20,
) -> None:
    """nodes.csv and edges.csv; every fifth node has no label."""
    rng = np.random.default_rng(seed)
    out.mkdir(parents=True, exist_ok=True)
    owner = rng.integers(len(owners), size=nodes)
    truth = rng.integers(3, size=nodes)
    income = rng.normal(2000 + 800 * truth, 500)
    age = rng.integers(20, 80, size=nodes) + 5 * truth
    town = np.array(["Rome", "Oslo", "Bern"])[(truth + (rng.random(nodes) < 0.3)) % 3]
    with (out / "nodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "owner", "income", "age", "town", *kind.labels])
        for v in range(nodes):
            label: list[object] = {
                "classification": [("low", "mid", "high")[truth[v]]],
                "multi-label": [int(truth[v] > 0), int(age[v] > 50)],
                "regression": [round(float(income[v] / 10 + rng.normal()), 3)],
            }[kind.task]
            label = ["" for _ in label] if v % 5 == 4 else label
            table.writerow([f"n{first + v}", owners[owner[v]], round(float(income[v]), 2), age[v], town[v], *label])
    pairs = set()
    while len(pairs) < 3 * nodes:
        v, u = rng.integers(nodes, size=2)
        if v != u and owner[v] == owner[u] and (u, v) not in pairs:
            pairs.add((v, u))
    while len(owners) > 1 and len(pairs) < 3 * nodes + crossing:
        v, u = rng.integers(nodes, size=2)
        if owner[v] != owner[u] and (u, v) not in pairs:
            pairs.add((v, u))
    with (out / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "w"])
        table.writerows([f"n{first + v}", f"n{first + u}", round(float(rng.uniform(1, 50)), 2)] for v, u in sorted(pairs))


def imported(out: Path, kind: Kind, schema: Path | None = None, **wished: object) -> GraphFolder:
    """The tables as a graph folder, with a run's schema if there is one."""
    write_tables(out / "tables", kind, **wished)  # type: ignore[arg-type]
    wishes = kind.wishes if schema is None else Wishes(roles=kind.wishes.roles)
    found = None if schema is None else read_schema(schema)
    tables = Tables(out / "tables/nodes.csv", out / "tables/edges.csv")
    return import_tables(out / "graph", [tables], replace(wishes), found)[0]
