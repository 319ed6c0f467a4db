"""Our results for papers' tables, kept as data: one file a table, with the command, code and versions of every run.

    {"table": "fedpub-table-2",
     "made":   {"1a2b": {"commit": ..., "source": ..., "packages": ...}},       by which code runs were made, and where
     "values": {"3c4d": {"train": 0.2, ...}},                                    sections of values, each once
     "cells": [{"command": "suture compare ...", "protocol": ..., "dataset": ..., "clients": 10, "method": ..., "set": [],
                "values": {"split": "3c4d", ...},
                "runs": [{"seed": 0, "made": "1a2b", "accuracy_client_mean": 0.8, ...}, ...]}]}

A run is known by its graph, its method and all values that decide its numbers, whatever table asked for it: one that another
table has made is taken from there, and one whose values have changed since is none of ours any more. Several processes may
add to the same files.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from suture.bench.recipe import Recipe, Values, agree
from suture.core.storage import make_folder, read_json, sha256_of_json, write_atomically
from suture.errors import IntegrityError
from suture.runs.machine import environment
from suture.runs.outcome import Line, Outcome
from suture.runs.pulse import holding

LOCK = ".lock"
SECONDS_TO_WAIT = 60.0
CURVE = (20, 40, 60, 80, 100)
"""Rounds of which the test score is kept: papers print scores of some."""
DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is kept of a run."""

    seed: int
    made: str
    """By which code, and where: a key of `made`."""
    accuracy_client_mean: float
    accuracy_weighted: float
    accuracy_worst: float
    accuracy_global: float | None = None
    validation: float | None = None
    metric: str
    rounds: int
    best_round: int
    bytes_up: int
    bytes_down: int
    seconds: float
    """From its first round to its last, whatever else the machine did."""
    processor: float | None = None
    """Seconds that processors worked for it; None: it was stopped in between."""
    tested: int
    trained: int
    """Examples, over all clients."""
    cut: str
    """Hash of who holds, trains on and tests what; runs are compared if this is the same."""
    sent_share: float | None = None
    """Of the weights, what was sent in the reported round, if the method says so."""
    curve: dict[int, float] = field(default_factory=dict)
    """Test score in some of its rounds, averaged as the protocol says."""

    @staticmethod
    def of(outcome: Outcome, history: Sequence[Line], counts: tuple[int, int], **more: Any) -> Run:
        """From what a run left; `counts` are the examples that were tested and trained, `more` the other fields."""
        lines = {int(line["round"]): line for line in history if line.get("test") is not None}
        told = {name: getattr(outcome, name) for name in FROM_OUTCOME}
        told |= {"tested": counts[0], "trained": counts[1], "seconds": round(outcome.seconds, 2)}
        told["sent_share"] = lines.get(outcome.best_round, {}).get("sent_share")
        told["curve"] = {number: float(lines[number]["test"]) for number in CURVE if number in lines}
        return Run(**told, **more)


FROM_OUTCOME = (
    *("seed", "accuracy_client_mean", "accuracy_weighted", "accuracy_worst", "accuracy_global", "validation"),
    *("metric", "rounds", "best_round", "bytes_up", "bytes_down"),
)
"""Fields that are called alike."""


@dataclass
class Kept:
    """The runs of one recipe, as a file has them."""

    command: str
    protocol: str
    dataset: str
    clients: int | None
    method: str
    set: tuple[str, ...]
    values: dict[str, str]
    runs: list[Run] = field(default_factory=list)


@dataclass
class TableFile:
    """One file."""

    table: str
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: list[Kept] = field(default_factory=list)

    def values_of(self, kept: Kept) -> Values:
        """All values of a recipe."""
        return {section: self.values[name] for section, name in kept.values.items()}

    def find(self, recipe: Recipe) -> Kept | None:
        """The runs of a recipe, if the values they were made with are still what it comes to."""
        for kept in self.cells:
            same = (kept.dataset, kept.method) == (recipe.dataset, recipe.method)
            if same and agree(self.values_of(kept), recipe.values):
                return kept
        return None

    def add(self, recipe: Recipe, run: Run, made: Mapping[str, Any]) -> None:
        """Keep one more run, in the place of one with the same seed."""
        kept = self.find(recipe)
        if kept is None:
            named = {section: _name_of(values) for section, values in recipe.values.items()}
            self.values |= {named[section]: values for section, values in recipe.values.items()}
            about = (recipe.protocol, recipe.dataset, recipe.clients, recipe.method, recipe.overrides)
            kept = Kept("", *about, named)
            self.cells.append(kept)
        kept.runs = sorted([*(one for one in kept.runs if one.seed != run.seed), run], key=lambda one: one.seed)
        kept.command = recipe.command([one.seed for one in kept.runs])
        self.made[run.made] = dict(made)

    def text(self) -> str:
        """As JSON, a run a line."""
        cells = sorted(self.cells, key=lambda one: (one.dataset, one.clients or 0, one.method, one.set))
        parts = {
            "table": json.dumps(self.table),
            "made": _block("{}", [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in self._used(self.made)]),
            "values": _block("{}", [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in self._used(self.values)]),
            "cells": _block("[]", [_cell_text(kept) for kept in cells]),
        }
        listed = ",\n".join(f"  {json.dumps(key)}: {part}" for key, part in parts.items())
        return f"{{\n{listed}\n}}\n"

    def _used(self, parts: Mapping[str, Any]) -> list[tuple[str, Any]]:
        used = {run.made for kept in self.cells for run in kept.runs}
        used |= {name for kept in self.cells for name in kept.values.values()}
        return sorted((name, part) for name, part in parts.items() if name in used)


def _block(brackets: str, lines: Sequence[str], indent: int = 2) -> str:
    """A JSON list or object, a line each."""
    inner = ",\n".join(" " * (indent + 2) + line for line in lines)
    return f"{brackets[0]}\n{inner}\n{' ' * indent}{brackets[1]}" if lines else brackets


def _cell_text(kept: Kept) -> str:
    about = {key: value for key, value in asdict(kept).items() if key != "runs"}
    runs = _block("[]", [json.dumps(_compact(run)) for run in kept.runs], 4)
    return f'{json.dumps(about)[:-1]}, "runs": {runs}}}'


def _compact(run: Run) -> dict[str, Any]:
    told = {key: value for key, value in asdict(run).items() if value is not None and value != {}}
    return {key: round(value, DIGITS) if isinstance(value, float) else value for key, value in told.items()}


def _name_of(content: Mapping[str, Any]) -> str:
    return sha256_of_json(content)[:10]


@cache
def _reader() -> TypeAdapter[TableFile]:
    return TypeAdapter(TableFile)


class Store:
    """A folder of such files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[int, TableFile]] = {}

    def path(self, table: str) -> Path:
        """The file of a table."""
        return self.folder / f"{table}.json"

    def files(self) -> Iterator[TableFile]:
        """Every file that is there, as it is now."""
        for path in sorted(self.folder.glob("*.json")):
            yield self._read(path)

    def runs(self, recipe: Recipe, first: str = "") -> list[Run]:
        """All runs of a recipe, by seed; of the same seed, that of the table `first` counts."""
        found: dict[int, Run] = {}
        for file in sorted(self.files(), key=lambda one: one.table != first):
            kept = file.find(recipe)
            for run in kept.runs if kept else ():
                found.setdefault(run.seed, run)
        return [found[seed] for seed in sorted(found)]

    def add(self, table: str, recipe: Recipe, run: Run, made: Mapping[str, Any]) -> None:
        """Keep one more run, also while others do."""
        make_folder(self.folder)
        with holding(self.folder / LOCK, SECONDS_TO_WAIT):
            path = self.path(table)
            file = self._read(path) if path.exists() else TableFile(table)
            file.add(recipe, run, made)
            write_atomically(path, file.text().encode())

    def _read(self, path: Path) -> TableFile:
        stamp = path.stat().st_mtime_ns
        known = self._seen.get(path)
        if known is None or known[0] != stamp:
            try:
                read = _reader().validate_python(read_json(path, "file of results"))
                for kept in read.cells:
                    read.values_of(kept)
            except (ValidationError, KeyError) as error:
                raise IntegrityError(f"{path} is no file of results, or is damaged; restore or delete it") from error
            known = self._seen[path] = stamp, read
        return known[1]


def here() -> dict[str, Any]:
    """By which code runs are made now, and where."""
    return {"commit": commit(), **environment()}


def made_by(about: Mapping[str, Any]) -> str:
    """The key of it."""
    return _name_of(dict(about))


def commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of this code, with a mark if files differ from it; None: it is not in a repository."""
    try:
        told = subprocess.run(
            ["git", "-C", str(package), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
