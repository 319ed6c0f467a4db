"""One owner's files to one table of nodes with ids and features, and one of edges: read, joined, checked for doubles."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from suture.errors import DataError, unknown
from suture.tables.engine import pl, table_errors
from suture.tables.reading import ID, RESERVED, Source, Table, id_text, stage, staged
from suture.tables.schema import OWNER_NAME, Roles, Task, Unseen
from suture.tables.summary import Summary, shown

END_NAMES = (("source", "target"), ("from", "to"), ("src", "dst"), ("u", "v"))
"""Pairs of columns that are the ends of an edge if nothing else is said."""
FORMULA = r"^([=@+]|-\D)"
OWNER = "{owner}"
Duplicates = Literal["refuse", "first", "last"]


@dataclass(frozen=True)
class Wishes:
    """What the user says about the tables; everything may be left to the tables or a schema, except for the id."""

    roles: Roles = field(default_factory=Roles)
    task: Task | None = None
    directed: bool | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Column to kind, e.g. `tokens:3170`, `text:128`, `numeric:raw` (not standardised) or `ignored`."""
    keep: frozenset[str] = frozenset()
    """Columns that are features although they seem to identify a person or to repeat the label."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Column to `indicator`, `error` or the number to fill in; `*` stands for all columns."""
    unseen: Unseen = "other"
    min_count: int = 5
    classes: tuple[str, ...] = ()
    encoding: str | None = None
    duplicates: Duplicates = "refuse"
    """Which row of an id counts if they differ."""


@dataclass(frozen=True)
class Tables:
    """The files (or tables in memory) of one owner, or of everybody."""

    nodes: Source
    edges: Source | None = None
    features: Source | None = None
    """A table with the same ids as `nodes`, or a JSON file of `{id: [tokens]}`."""
    owner: str | None = None


@dataclass(frozen=True)
class Prepared:
    """Nodes with their ids as text, and edges, ready to be encoded."""

    nodes: Table
    edges: Table | None
    owner: str | None
    roles: Roles
    feature_columns: tuple[str, ...]
    """Every column that is not an id, label, owner or split."""


def find_owners(nodes: str, edges: str | None, features: str | None) -> list[Tables]:
    """Files named by patterns such as `data/{owner}/nodes.csv`, one owner for each file of nodes that is there.

    An owner without an edge file has no edges.
    """
    parts = nodes.split(OWNER)
    found = re.compile(re.escape(parts[0]) + "(?P<owner>[^/]+)" + "(?P=owner)".join(re.escape(part) for part in parts[1:]))
    owners = []
    for path in sorted(glob.glob("*".join(glob.escape(part) for part in parts))):
        match = found.fullmatch(path)
        if match:
            owners.append(match["owner"])
    if not owners:
        raise DataError(f"no file fits {shown(nodes)}; {OWNER} stands for the name of an owner in it")

    def of(pattern: str | None, owner: str) -> Path | None:
        path = None if pattern is None else Path(pattern.replace(OWNER, owner))
        return path if path is not None and path.exists() else None

    for what, pattern in (("--edges", edges), ("--features", features)):
        if pattern is not None and OWNER not in pattern:
            raise DataError(f"{what} must hold {OWNER} as --nodes does, got {shown(pattern)}")
        if pattern is not None and not any(of(pattern, owner) for owner in owners):
            raise DataError(f"no file fits {what} {shown(pattern)} for any of the owners {', '.join(owners)}")
    return [Tables(Path(nodes.replace(OWNER, owner)), of(edges, owner), of(features, owner), owner) for owner in owners]


def check_owner(name: str) -> str:
    """Refuse a name that could not be the name of a folder and of a party."""
    if not OWNER_NAME.fullmatch(name):
        raise DataError(
            f"an owner cannot be called {shown(name)}; use letters, digits, dot, dash and underscore, at most 63 of them, "
            "beginning with a letter or digit"
        )
    return name


def prepare(tables: Tables, known: Roles, wishes: Wishes, scratch: Path, summary: Summary) -> Prepared:
    """Read an owner's files; `known` are the roles of a schema, whose columns may be absent unless the user names them."""
    roles = wishes.roles.over(known)
    if tables.owner is not None:
        check_owner(tables.owner)
    nodes = _staged(tables.nodes, tables.owner, wishes, scratch, summary)
    roles = _present(roles, wishes.roles, nodes, tables.owner, summary)
    if nodes.rows == 0:
        raise DataError(f"{nodes.name} has no rows; a graph needs at least one node")
    lost = Counter({"empty rows": nodes.empty})
    frame = _with_ids(nodes, roles.id)
    frame = _distinct(frame, nodes, wishes.duplicates, lost)
    extra: tuple[str, ...] = ()
    if tables.features is not None:
        features = _staged(tables.features, tables.owner, wishes, scratch, summary)
        frame, extra = _join_features(frame, features, nodes, roles, wishes.duplicates, summary)
    read = nodes.rows + nodes.empty
    kinds = nodes.types
    nodes = staged(nodes.name, frame, scratch / f"{len(list(scratch.iterdir()))}.parquet")
    summary.account("nodes", nodes.name, read, lost)
    _note_formulas(nodes, summary)
    edges = None if tables.edges is None else _staged(tables.edges, tables.owner, wishes, scratch, summary)
    if edges is not None:
        roles = _ends(roles, edges, summary)
    plain = tuple(name for name in kinds if name not in roles.node_columns)
    return Prepared(nodes, edges, tables.owner, roles, (*plain, *extra))


def _staged(source: Source, owner: str | None, wishes: Wishes, scratch: Path, summary: Summary) -> Table:
    """A table under a name that says whose it is: several owners' files are often called alike."""
    table = stage(source, scratch, wishes.encoding, summary)
    return table if owner is None else replace(table, name=f"{table.name} of {owner}")


def need(table: Table, columns: Sequence[str], option: str) -> None:
    """Refuse a column that is not in the table."""
    for name in columns:
        if name not in table.types:
            raise unknown(f"column of {table.name} for {option}", name, table.columns[:50], DataError)


def _present(roles: Roles, wished: Roles, nodes: Table, owner: str | None, summary: Summary) -> Roles:
    """The roles whose columns are there; what only the schema names may be absent, except for the id."""
    if not roles.id:
        raise DataError(
            f"say which column of {nodes.name} is the id with --id; it has {', '.join(map(shown, nodes.columns[:20]))}"
        )
    need(nodes, roles.id, "--id")
    need(nodes, wished.label, "--label")
    need(nodes, [name for name in (wished.owner,) if name], "--owner")
    need(nodes, [name for name in (wished.split,) if name], "--split")
    if wished.owner is not None and owner is not None:
        raise DataError("give either --owner COLUMN or --owner-name NAME, not both")
    kept = dict(vars(roles))
    for name in ("label", "owner", "split"):
        columns = roles.label if name == "label" else tuple(filter(None, [kept[name]]))
        if any(column not in nodes.types for column in columns):
            kept[name] = () if name == "label" else None
            summary.note(nodes.name, f"it has no column {shown(columns[0])}, the schema's {name}", "kept without")
    if owner is not None:
        kept["owner"] = None
    clash = [name for name in roles.label if name in roles.id]
    if clash:
        raise DataError(f"{shown(clash[0])} cannot be both the id and the label")
    return Roles(**kept)


def _with_ids(table: Table, columns: Sequence[str]) -> pl.LazyFrame:
    frame = table.scan().with_columns(id_text(columns, table.types))
    with table_errors(table.name):
        missing = int(frame.select(pl.col(RESERVED).null_count()).collect().item())
    if missing:
        raise DataError(f"{missing:,} rows of {table.name} have no id in {', '.join(map(shown, columns))}; give each one")
    return frame


def _distinct(frame: pl.LazyFrame, table: Table, duplicates: Duplicates, lost: Counter[str]) -> pl.LazyFrame:
    """Rows that are the same in every column count once; an id with rows that differ is refused, unless the user chose."""
    with table_errors(table.name):
        ids = frame.select(RESERVED).collect().to_series()
        doubled = ids.filter(ids.is_duplicated())
        if not len(doubled):
            return frame
        rows = frame.filter(pl.col(RESERVED).is_in(doubled.unique().implode())).collect().unique()
    names = rows[RESERVED]
    different = names.filter(names.is_duplicated()).unique()
    if len(different) and duplicates == "refuse":
        raise DataError(
            f"{len(different):,} ids of {table.name} have rows that differ, the first is {shown(different.sort()[0])}; "
            "say which row counts with --duplicates first or last, or which columns make it unique, as in --id bank,account"
        )
    lost["repeated, the same in every column"] += len(doubled) - len(names)
    lost[f"of an id that is there again, only the {duplicates} counts"] += len(names) - names.n_unique()
    return frame.unique(RESERVED, keep="last" if duplicates == "last" else "first", maintain_order=True)


def _join_features(
    frame: pl.LazyFrame, features: Table, nodes: Table, roles: Roles, duplicates: Duplicates, summary: Summary
) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    """Features of the same ids beside the nodes' own columns."""
    keys = roles.id if all(name in features.types for name in roles.id) else (ID,)
    need(features, keys, "--id")
    extra = tuple(name for name in features.columns if name not in keys)
    clash = [name for name in extra if name in nodes.types]
    if clash:
        raise DataError(f"the column {shown(clash[0])} is in {nodes.name} and in {features.name}; rename one of them")
    lost = Counter({"empty rows": features.empty})
    theirs = _distinct(_with_ids(features, keys), features, duplicates, lost)
    with table_errors(features.name):
        lost["of ids that are not in the node table"] = int(
            theirs.join(frame.select(RESERVED), on=RESERVED, how="anti").select(pl.len()).collect().item()
        )
        without = int(frame.join(theirs.select(RESERVED), on=RESERVED, how="anti").select(pl.len()).collect().item())
    summary.account("features", features.name, features.rows + features.empty, lost)
    if without:
        summary.note(
            features.name, f"{without:,} nodes have no row in it", "kept; their features from it are missing", without
        )
    joined = frame.join(theirs.select(RESERVED, *extra), on=RESERVED, how="left", maintain_order="left")
    return joined, extra


def _note_formulas(nodes: Table, summary: Summary) -> None:
    with table_errors(nodes.name):
        count = int(nodes.scan().select(pl.col(RESERVED).str.contains(FORMULA).sum()).collect().item() or 0)
    if count:
        summary.note(
            nodes.name,
            f"{count:,} ids look like spreadsheet formulas",
            "kept as text; look out when you open lists of ids",
            count,
        )


def _ends(roles: Roles, edges: Table, summary: Summary) -> Roles:
    """Which columns of the edge table are the ends."""
    kept = dict(vars(roles))
    if not roles.source and not roles.target:
        pair = next((pair for pair in END_NAMES if all(name in edges.types for name in pair)), None)
        if pair is None:
            raise DataError(
                f"say which columns of {edges.name} are the ends of an edge with --source and --target; "
                f"it has {', '.join(map(shown, edges.columns[:20]))}"
            )
        kept |= {"source": pair[:1], "target": pair[1:]}
        summary.note(
            edges.name, f"nothing said which columns are the ends of an edge, {pair[0]} and {pair[1]} look so", "kept"
        )
    need(edges, kept["source"], "--source")
    need(edges, kept["target"], "--target")
    if roles.weight is not None:
        need(edges, [roles.weight], "--weight")
    if not len(kept["source"]) == len(kept["target"]) == len(roles.id):
        raise DataError(
            f"--id names {len(roles.id)} columns, --source {len(kept['source'])} and --target {len(kept['target'])}; "
            "they must be as many"
        )
    return Roles(**kept)
