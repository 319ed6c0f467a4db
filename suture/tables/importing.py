"""Tables to a graph folder, and the schema that makes new tables fit an old graph."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

from suture.core.progress import each, work
from suture.core.storage import disk_errors
from suture.errors import DataError
from suture.tables.edges import Boundary, Edges, read_edges
from suture.tables.engine import pl, table_errors
from suture.tables.features import Encoder, encode_table
from suture.tables.folder import GraphFolder, to_data, write_folder
from suture.tables.labels import encode_labels, encode_split
from suture.tables.making import schema_of
from suture.tables.pieces import Piece
from suture.tables.preparing import Prepared, Tables, Wishes, check_owner, prepare
from suture.tables.reading import RESERVED
from suture.tables.schema import Roles, Schema
from suture.tables.summary import Summary, listed, shown

__all__ = ["Tables", "Wishes", "apply_schema", "check_schema", "import_tables", "make_schema"]


def import_tables(
    out: Path, tables: Sequence[Tables], wishes: Wishes, schema: Schema | None = None, *, add: bool = False
) -> tuple[GraphFolder, Summary]:
    """Read one owner's tables, or several owners', into a graph folder; nothing is written unless all of it can be.

    Args:
        out: The folder to write.
        tables: One entry for a whole graph, or one for each owner.
        wishes: What the columns are.
        schema: What the owners agreed on; made from these tables if it is not given.
        add: Add these owners to a folder that is there, with its schema.

    Raises:
        DataError: One sentence on what in the tables cannot be imported.
    """
    before = GraphFolder.read(out) if add else None
    if before is not None:
        if schema is not None and replace(schema, roles=before.schema.roles) != before.schema:
            raise DataError(f"{out} was imported with another schema; leave --schema away, or import all owners anew")
        schema = before.schema
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already; choose another folder, or add an owner to it with --add")
    summary = Summary() if before is None else before.summary()
    summary.facts = {}
    with _scratch(out) as scratch:
        schema, pieces = _pieces(tables, wishes, schema, scratch, summary)
        old = [] if before is None else [before.piece()]
        _check_owners([*old, *pieces])
        with work("import", f"writing {out.name}"):
            folder = write_folder(out, [*old, *pieces], schema, summary, replace=add)
    return folder, summary


def make_schema(tables: Sequence[Tables], wishes: Wishes) -> tuple[Schema, Summary]:
    """The schema that fits these tables, and what was noticed on the way."""
    summary = Summary()
    with _scratch(Path.cwd()) as scratch:
        owners = _read(tables, Roles(), wishes, scratch, summary)
        return _looked_at(owners, wishes, summary), summary


def check_schema(tables: Sequence[Tables], wishes: Wishes, schema: Schema) -> Summary:
    """Whether tables fit a schema: everything an import would say, without writing anything."""
    summary = Summary()
    with _scratch(Path.cwd()) as scratch:
        _pieces(tables, wishes, schema, scratch, summary)
    return summary


def apply_schema(tables: Tables | Sequence[Tables], schema: Schema, wishes: Wishes | None = None) -> Data:
    """New nodes and edges as the graph a schema describes, for prediction; unseen categories are treated as it says."""
    tables = [tables] if isinstance(tables, Tables) else tables
    with _scratch(Path.cwd()) as scratch:
        schema, pieces = _pieces(tables, wishes or Wishes(), schema, scratch, Summary())
        _check_owners(pieces)
        whole = Piece.concat(pieces, scratch)
        owners = [] if whole.owner is None else sorted(whole.owner.unique().to_list())
        return to_data(whole, schema, owners)


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A temporary folder on the disk that will hold the result."""
    home = next(
        folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir() and folder != out.absolute()
    )
    with disk_errors("write", home), tempfile.TemporaryDirectory(dir=home, prefix=".suture-import-") as folder:
        yield Path(folder)


def _pieces(
    tables: Sequence[Tables], wishes: Wishes, schema: Schema | None, scratch: Path, summary: Summary
) -> tuple[Schema, list[Piece]]:
    known = schema.roles if schema else Roles()
    if schema is not None:
        _agree(wishes, schema)
    owners = _read(tables, known, wishes, scratch, summary)
    made = schema or _looked_at(owners, wishes, summary)
    encoded = each("import", "making features and edges", owners, "tables", lambda owner: owner.nodes.name)
    return made, [_piece(owner, made, summary) for owner in encoded]


def _read(tables: Sequence[Tables], known: Roles, wishes: Wishes, scratch: Path, summary: Summary) -> list[Prepared]:
    read = each("import", "reading tables", tables, "tables", _named)
    return [prepare(one, known, wishes, scratch, summary) for one in read]


def _named(one: Tables) -> str:
    return one.owner or (one.nodes.name if isinstance(one.nodes, Path) else "the table")


def _looked_at(owners: Sequence[Prepared], wishes: Wishes, summary: Summary) -> Schema:
    with work("import", "looking at columns"):
        return schema_of(owners, wishes, summary)


def _agree(wishes: Wishes, schema: Schema) -> None:
    """What the schema has settled cannot be wished otherwise."""
    if wishes.directed and not schema.directed:
        raise DataError("the schema says that edges have no direction; leave --directed away, or make the schema with it")
    if wishes.task is not None and wishes.task != schema.task:
        raise DataError(
            f"the schema's task is {schema.task}, not {wishes.task}; leave --task away, or make the schema with it"
        )
    if wishes.kinds or wishes.keep or wishes.missing or wishes.classes:
        raise DataError(
            "--type, --ignore, --keep, --missing and --classes are settled by the schema; make it again with them"
        )


def _piece(owner: Prepared, schema: Schema, summary: Summary) -> Piece:
    """One owner's tables as arrays."""
    nodes, roles = owner.nodes, owner.roles
    absent = [column.name for column in schema.used if column.name not in nodes.types]
    if absent:
        raise DataError(f"{nodes.name} has no column {shown(absent[0])}, which the schema names; add it")
    further = [name for name in owner.feature_columns if name not in {column.name for column in schema.columns}]
    if further:
        summary.note(nodes.name, f"columns that the schema does not name: {listed(further)}", "dropped", len(further))
    encoder = Encoder(schema, nodes.name)
    with work("import", f"features of {nodes.name}", nodes.rows, "rows") as going:
        blocks = going.through(nodes.chunks([column.name for column in schema.used]), len)
        x = encode_table(blocks, nodes.rows, encoder)
    encoder.report(summary)
    with table_errors(nodes.name):
        plain = nodes.scan().select([RESERVED, *sorted(roles.node_columns - set(roles.id))]).collect()
    y = _labels(plain, schema.with_roles(roles), nodes.name, summary)
    split = encode_split(plain[roles.split]) if roles.split else np.zeros(nodes.rows, dtype=np.int8)
    ids = plain[RESERVED].alias("id")
    edges = _edges(owner, ids, schema.directed, summary)
    names = _owner_names(owner, plain)
    return Piece(
        ids, names, y, split, x, edges.index, edges.weight, edges.boundary, _graphless(owner, names, edges, summary)
    )


def _labels(plain: pl.DataFrame, schema: Schema, name: str, summary: Summary) -> np.ndarray:
    notes: Counter[str] = Counter()
    y = encode_labels(plain, schema, notes)
    unlabelled = notes.pop("unlabelled", 0)
    if unlabelled:
        what = f"{unlabelled:,} nodes have no label"
        summary.note(name, what, "kept without; they take part in message passing only", unlabelled)
    unknown = sum(notes.values())
    if unknown:
        names = [what.removeprefix("unknown class ") for what in notes]
        what = f"{unknown:,} labels are classes that the schema does not know: {', '.join(names[:5])}"
        summary.note(name, what, "kept as nodes without a label", unknown)
    return y


def _edges(owner: Prepared, ids: pl.Series, directed: bool, summary: Summary) -> Edges:
    if owner.edges is not None:
        return read_edges(owner.edges, ids, owner.roles, directed, summary)
    return Edges(np.zeros((2, 0), dtype=np.int64), None, Boundary.none(False))


def _owner_names(owner: Prepared, plain: pl.DataFrame) -> pl.Series | None:
    if owner.owner is not None:
        return pl.Series("owner", [owner.owner], dtype=pl.String).new_from_index(0, len(plain))
    if owner.roles.owner is None:
        return None
    names = plain[owner.roles.owner].cast(pl.String).str.strip_chars().alias("owner")
    missing = int((names.is_null() | (names == "")).sum())
    if missing:
        raise DataError(f"{missing:,} rows of {owner.nodes.name} have no owner in {shown(owner.roles.owner)}; fill it in")
    for name in names.unique().to_list():
        check_owner(name)
    return names


def _graphless(owner: Prepared, names: pl.Series | None, edges: Edges, summary: Summary) -> tuple[str, ...]:
    """Owners without edges."""
    if names is None:
        if owner.edges is None:
            summary.note(owner.nodes.name, "there is no edge table", "kept as nodes without edges")
        return ()
    touched = np.zeros(len(names), dtype=bool)
    touched[edges.index.ravel()] = True
    touched[edges.boundary.node] = True
    having = set(names.filter(pl.Series(touched)).unique().to_list())
    without = tuple(name for name in names.unique(maintain_order=True).to_list() if name not in having)
    for name in without:
        found = "it has no edge table" if owner.edges is None else "none of its nodes has an edge"
        summary.note(f"owner {name}", found, "kept as an owner without a graph")
    return without


def _check_owners(pieces: Sequence[Piece]) -> None:
    if len(pieces) < 2:
        return
    seen: set[str] = set()
    for piece in pieces:
        names = None if piece.owner is None else set(piece.owner.unique().to_list())
        if names is None:
            raise DataError("each of several imports needs an owner: say --owner-name NAME, also for the first one")
        if seen & names:
            raise DataError(f"the owner {sorted(seen & names)[0]!r} is in the folder already; choose another name")
        seen |= names
