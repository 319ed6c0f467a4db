"""What papers print, and which of our runs stands for which of their cells.

    suture/published/figures.csv    every printed number, with its paper, table and cell; misprints are flagged, not mended
    suture/published/PAPER.toml     who repeats how often, and what is set for a row (`rows`) or a variant (`variants`)

A row stands for the method of its name unless `rows` says otherwise; a variant is `key=value;key=value`, and each part of it
is looked up whole, then by its key. What cannot be run says why: nothing is left out. Pictures without numbers are `drawn`:
cells of which only ours is known.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from suture.bench.recipe import Recipe
from suture.config.toml import read_toml
from suture.core.storage import disk_errors
from suture.errors import ConfigError, unknown
from suture.methods import METHODS

FOLDER = Path(__file__).parents[1] / "published"
FIGURES = "figures.csv"
ROUND = "round"
"""The part of a variant that says in which round a score was read."""
ALL = "all"
ODD = "ODD:"
"""Before what a note has against a figure."""


class _Strict:
    """What a file describes: a key that is not known is refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Printed:
    """A number in a paper, as its line of the file has it."""

    paper: str
    table: str
    setting: str
    dataset: str
    clients: int | None
    method: str
    variant: str
    metric: str
    mean: float | None
    """None: it is in a picture without numbers."""
    std: float | None
    note: str = ""

    @property
    def odd(self) -> str:
        """What is wrong or strange about it in print; empty: nothing that we know of."""
        return self.note.partition(ODD)[2].strip()


@dataclass(frozen=True)
class Stands(_Strict):
    """What stands for a published row."""

    method: str = ""
    """Ours; empty: that of the row's own name."""
    set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn(_Strict):
    """Cells of a picture: every combination."""

    setting: str
    datasets: tuple[str, ...]
    clients: tuple[int, ...]
    rows: tuple[str, ...]
    variants: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Described(_Strict):
    """A table as the file of its paper describes it."""

    printed: str
    title: str
    note: str = ""
    nothing: str = ""
    """Why there is nothing to run."""
    why_not: dict[str, str] = field(default_factory=dict)
    """Why a metric of it is not measured."""
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    drawn: tuple[Drawn, ...] = ()


@dataclass(frozen=True)
class Paper(_Strict):
    """What a paper's file says."""

    source: str
    own: tuple[str, ...]
    baselines: tuple[str, ...]
    repetitions: int
    tables: dict[str, Described]
    set: tuple[str, ...] = ()
    protocols: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Stands] = field(default_factory=dict)
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A published number, and the runs that stand for it."""

    printed: Printed
    recipe: Recipe | None
    """None: it cannot be run."""
    why_not: str = ""
    round: int | None = None
    """The round in which its score is read; None: the one that the protocol reports."""

    @property
    def row(self) -> str:
        """The method as the paper calls it."""
        return self.printed.method


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper."""

    name: str
    paper: str
    about: Paper
    described: Described
    cells: tuple[Cell, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """As many as the paper repeats its runs."""
        return tuple(range(self.about.repetitions))

    def is_headline(self, cell: Cell) -> bool:
        """Whether a cell is of the paper's own methods, or of what they are ranked against."""
        return cell.row in (*self.about.own, *self.about.baselines)


def read_tables(folder: Path = FOLDER) -> dict[str, Table]:
    """Every table that is described, by its name: `fedpub-table-2`."""
    printed: dict[tuple[str, str], list[Printed]] = {}
    for one in read_figures(folder):
        printed.setdefault((one.paper, one.table), []).append(one)
    found: dict[str, Table] = {}
    for file in sorted(folder.glob("*.toml")):
        name, about = file.stem, _paper(file)
        for key, described in about.tables.items():
            rows = [*printed.pop((name, described.printed), ()), *_drawn(name, described)]
            cells = tuple(_cell(one, about, described) for one in rows)
            found[f"{name}-{key}"] = Table(f"{name}-{key}", name, about, described, cells)
    if printed:
        paper, table = next(iter(printed))
        raise ConfigError(f"{folder} has figures of {table} of {paper}, and {paper}.toml does not describe it; add it there")
    return found


def read_figures(folder: Path = FOLDER) -> list[Printed]:
    """Every line of the file of printed numbers."""
    path = folder / FIGURES
    with disk_errors("read", path), path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [_printed(row, path, number) for number, row in enumerate(rows, 2)]


def _printed(row: Mapping[str, str], path: Path, number: int) -> Printed:
    try:
        named = [row[key] for key in ("paper", "table", "setting", "dataset")]
        clients = int(row["clients"]) if row["clients"] else None
        std = float(row["std"]) if row["std"] else None
        words = (row["method"], row["variant"], row["metric"])
        return Printed(named[0], named[1], named[2], named[3], clients, *words, float(row["mean"]), std, row["unit_note"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"line {number} of {path} is no figure ({error}); compare it with the other lines") from None


def _paper(file: Path) -> Paper:
    try:
        return TypeAdapter(Paper).validate_python(read_toml(file))
    except ValidationError as problem:
        first = problem.errors()[0]
        raise ConfigError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ConfigError as problem:
        raise ConfigError(f"{file} {problem}") from None


def _drawn(paper: str, described: Described) -> Iterator[Printed]:
    for some in described.drawn:
        for dataset, clients, row, variant in itertools.product(some.datasets, some.clients, some.rows, some.variants):
            where = (paper, described.printed, some.setting, dataset, clients, row, variant)
            yield Printed(*where, "accuracy", None, None, "a picture without numbers")


def _cell(printed: Printed, about: Paper, described: Described) -> Cell:
    stands = about.rows.get(printed.method, Stands())
    method = stands.method or printed.method
    values, read, missing = [*about.set, *stands.set], None, ""
    for part in filter(None, printed.variant.split(";")):
        key, _, value = part.partition("=")
        known = {**about.variants, **described.variants}
        found = known.get(part, known.get(key))
        if key == ROUND:
            read = int(value)
        elif found is None:
            missing = f"nothing here stands for {part}"
        else:
            values += [one.replace("{value}", value).replace("{method}", method) for one in found]
    why_not = described.nothing or described.why_not.get(printed.metric, "") or missing
    if printed.dataset == ALL:
        why_not = why_not or "the printed mean over all its cells, some of which are of graphs that are not here"
    if method not in METHODS:
        why_not = why_not or f"no method here stands for {printed.method}"
    if why_not:
        return Cell(printed, None, why_not)
    protocol = about.protocols.get(printed.setting, printed.setting)
    # Whoever sees the uncut graph alone is not cut: such figures are printed once for all numbers of clients.
    clients = None if printed.clients == 1 and METHODS[method].sees_uncut_graph else printed.clients
    return Cell(printed, Recipe(protocol, printed.dataset, clients, method, tuple(values)), "", read)


def chosen(tables: Mapping[str, Table], names: Sequence[str]) -> list[Table]:
    """The tables of these names, or all of a paper by its name; `all` is every one."""
    papers = {table.paper for table in tables.values()}
    found: dict[str, Table] = {}
    for name in names:
        if name not in (ALL, *papers, *tables):
            raise unknown("table", name, [*tables, *papers, ALL])
        found |= {key: table for key, table in tables.items() if name in (ALL, table.paper, key)}
    return list(found.values())


@dataclass(frozen=True)
class Filter:
    """Which cells of tables are wanted; None: all."""

    datasets: tuple[str, ...] | None = None
    clients: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    """As the papers call them, or as we do."""

    def of(self, tables: Sequence[Table]) -> list[Table]:
        """The tables with these cells alone; a name that none of them has is refused."""
        cells = [cell for table in tables for cell in table.cells]
        rows = {name for cell in cells for name in _names(cell)}
        _check("dataset", self.datasets, {cell.printed.dataset for cell in cells})
        _check("method", self.methods, rows)
        sizes = {str(cell.printed.clients) for cell in cells if cell.printed.clients is not None}
        _check("number of clients", None if self.clients is None else tuple(map(str, self.clients)), sizes)
        kept = [replace(table, cells=tuple(cell for cell in table.cells if self._wants(cell))) for table in tables]
        found = [table for table in kept if table.cells]
        if not found and cells:
            raise ConfigError("no cell of these tables has all that the filters ask for; leave one of them out")
        return found

    def _wants(self, cell: Cell) -> bool:
        printed = cell.printed
        return (
            (self.datasets is None or printed.dataset in self.datasets)
            and (self.clients is None or printed.clients in self.clients)
            and (self.methods is None or not _names(cell).isdisjoint(self.methods))
        )


def _names(cell: Cell) -> set[str]:
    return {cell.row} | ({cell.recipe.method} if cell.recipe else set())


def _check(kind: str, asked: Sequence[str] | None, known: set[str]) -> None:
    for name in asked or ():
        if name not in known:
            raise unknown(kind, name, known)
