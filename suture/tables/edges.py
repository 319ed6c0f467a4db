"""Rows of an edge table to edges between positions, and boundary edges to ids that are nobody's here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from suture.errors import DataError
from suture.tables import values
from suture.tables.engine import pl
from suture.tables.reading import RESERVED, Table, id_text
from suture.tables.schema import Roles
from suture.tables.summary import Summary, shown

EDGES_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Boundary:
    """Edges of which one end is at another owner: the own node's position, the other's id as text, weight, direction."""

    node: np.ndarray
    foreign: pl.Series
    weight: np.ndarray | None
    outgoing: np.ndarray
    """Whether the edge goes from the own node to the foreign one; True throughout if edges have no direction."""

    @classmethod
    def none(cls, weighted: bool) -> Boundary:
        """No such edges."""
        weight = np.zeros(0, dtype=np.float32) if weighted else None
        return cls(np.zeros(0, dtype=np.int64), pl.Series("foreign", [], dtype=pl.String), weight, np.zeros(0, dtype=bool))

    def shifted(self, offset: int) -> Boundary:
        """The same edges of nodes that stand `offset` positions later."""
        return Boundary(self.node + offset, self.foreign, self.weight, self.outgoing)

    def where(self, chosen: np.ndarray) -> Boundary:
        """Some of the edges."""
        weight = None if self.weight is None else self.weight[chosen]
        return Boundary(self.node[chosen], self.foreign.filter(pl.Series(chosen)), weight, self.outgoing[chosen])


@dataclass(frozen=True)
class Edges:
    """Sorted, without repetitions and self loops; in both directions unless the graph is directed."""

    index: np.ndarray
    weight: np.ndarray | None
    boundary: Boundary


def read_edges(table: Table, ids: pl.Series, roles: Roles, directed: bool, summary: Summary) -> Edges:
    """The edges of one table among nodes with these ids."""
    positions = pl.DataFrame({RESERVED: ids, "position": np.arange(len(ids))})
    weighted = roles.weight is not None
    wanted = list(dict.fromkeys([*roles.source, *roles.target, *([roles.weight] if roles.weight else [])]))
    lost: Counter[str] = Counter({"empty rows": table.empty})
    inner, outer = [], []
    for block in table.chunks(wanted, EDGES_AT_ONCE):
        ends = _located(block, positions, roles, table)
        if weighted:
            ends = ends.with_columns(_weights(block[roles.weight or ""], table))
        known = ends.filter(~pl.col("absent"))
        lost["without an id at one end"] += len(ends) - len(known)
        inside = known["s"].is_not_null() & known["t"].is_not_null()
        nowhere = known["s"].is_null() & known["t"].is_null()
        lost["with neither end in the node table"] += int(nowhere.sum())
        inner.append(known.filter(inside).select("s", "t", *["weight"] * weighted))
        outer.append(_outer(known.filter(~inside & ~nowhere), directed))
    _check_that_ids_meet(table, ids, roles, lost["with neither end in the node table"])
    if not inner:
        summary.account("edges", table.name, table.rows + table.empty, lost)
        return Edges(
            np.zeros((2, 0), dtype=np.int64), np.zeros(0, np.float32) if weighted else None, Boundary.none(weighted)
        )
    _note_weights(pl.concat(inner), table, weighted, summary)
    edges = _inner_edges(pl.concat(inner), len(ids), directed, lost)
    boundary = _boundary_edges(pl.concat(outer), lost, weighted)
    summary.account("edges", table.name, table.rows + table.empty, lost)
    if boundary.node.size:
        summary.note(
            table.name,
            f"{boundary.node.size:,} edges lead to ids that are not in the node table",
            "kept as boundary edges with the foreign id",
            boundary.node.size,
        )
    return Edges(*edges, boundary)


def _check_that_ids_meet(table: Table, ids: pl.Series, roles: Roles, nowhere: int) -> None:
    """Refuse a table whose every edge is between strangers: its ids are written otherwise, or of another column."""
    if not nowhere or nowhere < table.rows or not len(ids):
        return
    first = next(iter(table.chunks(list(roles.source), 1))).select(id_text(roles.source, table.types)).to_series()[0]
    raise DataError(
        f"none of the {nowhere:,} edges of {table.name} has an end in the node table: an edge begins at {shown(first)}, a "
        f"node is called {shown(ids[0])}; write ids alike in both, name other columns (--id, --source, --target), or leave "
        "--edges out"
    )


def _located(block: pl.DataFrame, positions: pl.DataFrame, roles: Roles, table: Table) -> pl.DataFrame:
    """Ends as text (source, target) and as positions (s, t), null where unknown."""
    ends = block.select(
        id_text(roles.source, table.types).alias("source"), id_text(roles.target, table.types).alias("target")
    ).with_columns(absent=pl.col("source").is_null() | pl.col("target").is_null())
    for name, short in (("source", "s"), ("target", "t")):
        ends = ends.join(
            positions.rename({"position": short}), left_on=name, right_on=RESERVED, how="left", maintain_order="left"
        )
    return ends


def _weights(cells: pl.Series, table: Table) -> pl.Series:
    weight = values.finite(values.try_numbers(cells), table.name)
    values.all_parsed(cells, weight, "the weight", table.name)
    if weight.null_count():
        raise DataError(
            f"the weight {shown(cells.name)} of {table.name} is missing in {weight.null_count():,} rows; fill it in, "
            "or import without --weight"
        )
    return weight.alias("weight")


def _note_weights(inner: pl.DataFrame, table: Table, weighted: bool, summary: Summary) -> None:
    if weighted:
        for what, count in (("negative", (inner["weight"] < 0).sum()), ("zero", (inner["weight"] == 0).sum())):
            if count:
                summary.note(
                    table.name, f"{int(count):,} weights are {what}", "kept; look whether that is meant", int(count)
                )


def _inner_edges(
    inner: pl.DataFrame, nodes: int, directed: bool, lost: Counter[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Without loops and repetitions; counts what went."""
    source, target = inner["s"].to_numpy(), inner["t"].to_numpy()
    weight = inner["weight"].to_numpy() if "weight" in inner.columns else None
    loop = source == target
    lost["self loops"] += int(loop.sum())
    if loop.any():
        source, target, weight = source[~loop], target[~loop], None if weight is None else weight[~loop]
    flipped = (source > target) & (not directed)
    low, high = np.where(flipped, target, source), np.where(flipped, source, target)
    # One number for each edge: both directions of an undirected one are neighbours in the order of these numbers.
    key, weight = _summed((low * np.int64(max(nodes, 1)) + high) * 2 + flipped, weight)
    lost["repeated" if weight is None else "repeated, their weights added"] += source.size - key.size
    pair = key >> 1
    if not directed:
        pair, weight = _undirected(pair, weight, lost)
    ends = np.stack(np.divmod(pair, max(nodes, 1)))
    if directed:
        return ends, None if weight is None else weight.astype(np.float32)
    order = np.lexsort((np.concatenate([ends[1], ends[0]]), np.concatenate([ends[0], ends[1]])))
    both = np.stack([np.concatenate([ends[0], ends[1]])[order], np.concatenate([ends[1], ends[0]])[order]])
    return both, None if weight is None else np.concatenate([weight, weight])[order].astype(np.float32)


def _undirected(pair: np.ndarray, weight: np.ndarray | None, lost: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Edges that are given from both ends count once: with their weight if it is always the same, else with the sum."""
    second = np.flatnonzero(pair[1:] == pair[:-1]) + 1
    if not second.size:
        return pair, weight
    mirrored = weight is None or np.array_equal(weight[second], weight[second - 1])
    lost["given in both directions" if mirrored else "given in both directions, their weights added"] += second.size
    if weight is not None:
        if not mirrored:
            weight[second - 1] += weight[second]
        weight = np.delete(weight, second)
    return np.delete(pair, second), weight


def _summed(key: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Distinct keys in order, weights of equal ones added."""
    if weight is None:
        return np.unique(key), None
    distinct, place = np.unique(key, return_inverse=True)
    return distinct, np.bincount(place, weights=weight, minlength=distinct.size)


def _outer(outer: pl.DataFrame, directed: bool) -> pl.DataFrame:
    """Rows of which exactly one end is known."""
    outgoing = pl.col("s").is_not_null()
    return outer.select(
        node=pl.coalesce("s", "t").cast(pl.Int64),
        foreign=pl.when(outgoing).then("target").otherwise("source"),
        outgoing=outgoing if directed else pl.lit(True),
        **({"weight": pl.col("weight")} if "weight" in outer.columns else {}),
    )


def _boundary_edges(outer: pl.DataFrame, lost: Counter[str], weighted: bool) -> Boundary:
    keys = ["node", "foreign", "outgoing"]
    merged = outer.group_by(keys).agg(*[pl.col("weight").sum()] * weighted).sort(keys)
    lost["repeated, their weights added" if weighted else "repeated"] += len(outer) - len(merged)
    weight = merged["weight"].to_numpy().astype(np.float32) if weighted else None
    return Boundary(merged["node"].to_numpy(), merged["foreign"], weight, merged["outgoing"].to_numpy())
