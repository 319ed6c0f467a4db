"""One owner's part of a graph, or all of it, as arrays; parts are joined into one and one is cut into parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from suture.errors import DataError
from suture.tables.edges import Boundary
from suture.tables.engine import pl
from suture.tables.features import Matrix
from suture.tables.schema import Schema

ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Piece:
    """N nodes with F features and E edges between their positions."""

    ids: pl.Series
    owner: pl.Series | None
    """Name of each node's owner; None for a graph that nobody has divided."""
    y: np.ndarray
    split: np.ndarray
    """int8 [N]: 1 train, 2 val, 3 test, 0 none."""
    x: Matrix
    edge_index: np.ndarray
    edge_weight: np.ndarray | None
    boundary: Boundary
    graphless: tuple[str, ...] = ()

    @classmethod
    def concat(cls, pieces: Sequence[Piece], scratch: Path) -> Piece:
        """Pieces one after the other; dense features are joined in a file in `scratch`, not in memory."""
        if len(pieces) == 1:
            return pieces[0]
        weighted = {piece.edge_weight is not None for piece in pieces if piece.edge_index.size}
        if len(weighted) > 1:
            raise DataError(
                "some owners' edges have weights and others' have none; import all of them with --weight, or none"
            )
        offsets = np.cumsum([0, *(len(piece.ids) for piece in pieces)])
        shifted = [piece.boundary.shifted(int(offset)) for piece, offset in zip(pieces, offsets, strict=False)]
        has_weight = weighted == {True}
        return cls(
            ids=pl.concat([piece.ids for piece in pieces]),
            owner=pl.concat([piece.owner for piece in pieces if piece.owner is not None]),
            y=np.concatenate([piece.y for piece in pieces]),
            split=np.concatenate([piece.split for piece in pieces]),
            x=_joined_features([piece.x for piece in pieces], scratch),
            edge_index=np.concatenate([p.edge_index + o for p, o in zip(pieces, offsets, strict=False)], axis=1),
            edge_weight=_joined_weights([piece.edge_weight for piece in pieces], has_weight),
            boundary=Boundary(
                np.concatenate([one.node for one in shifted]),
                pl.concat([one.foreign for one in shifted]),
                _joined_weights([one.weight for one in shifted], any(one.weight is not None for one in shifted)),
                np.concatenate([one.outgoing for one in shifted]),
            ),
            graphless=tuple(name for piece in pieces for name in piece.graphless),
        )


def _joined_weights(weights: Sequence[np.ndarray | None], wanted: bool) -> np.ndarray | None:
    if not wanted:
        return None
    return np.concatenate([np.zeros(0, dtype=np.float32) if weight is None else weight for weight in weights])


def _joined_features(parts: Sequence[Matrix], scratch: Path) -> Matrix:
    if sp.issparse(parts[0]):
        return sp.vstack(parts, format="csr", dtype=np.float32)
    shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
    whole = np.lib.format.open_memmap(scratch / "features.npy", mode="w+", dtype=np.float32, shape=shape)
    row = 0
    for part in parts:
        for start in range(0, part.shape[0], ROWS_AT_ONCE):
            block = part[start : start + ROWS_AT_ONCE]
            whole[row : row + block.shape[0]] = block
            row += block.shape[0]
    whole.flush()
    return whole


def pieces_of(whole: Piece, owners: Sequence[str], directed: bool) -> Iterator[tuple[str, Piece]]:
    """Each owner's nodes and edges; an edge to another owner's node becomes a boundary edge with that node's id."""
    if whole.owner is None:
        raise DataError("this graph has no owners")
    owner = whole.owner.to_numpy()
    source, target = whole.edge_index
    for name in owners:
        own = owner == name
        position = np.cumsum(own) - 1
        inside = own[source] & own[target]
        cut = own[source] & ~own[target]
        arriving = ~own[source] & own[target]
        edges = np.stack([position[source[inside]], position[target[inside]]])
        weight = None if whole.edge_weight is None else whole.edge_weight[inside]
        boundary = _cut_edges(whole, own, position, cut, arriving if directed else None)
        yield (
            name,
            replace(
                whole,
                ids=whole.ids.filter(pl.Series(own)),
                owner=whole.owner.filter(pl.Series(own)),
                y=whole.y[own],
                split=whole.split[own],
                x=whole.x[np.flatnonzero(own)],
                edge_index=edges,
                edge_weight=weight,
                boundary=boundary,
                graphless=tuple(one for one in whole.graphless if one == name),
            ),
        )


def _cut_edges(
    whole: Piece, own: np.ndarray, position: np.ndarray, cut: np.ndarray, arriving: np.ndarray | None
) -> Boundary:
    """The owner's boundary edges: those it had, and those that the cut makes.

    An undirected graph has every edge in both directions: its arriving edges are the leaving ones, so none are given.
    """
    chosen = [(cut, 0, True)] if arriving is None else [(cut, 0, True), (arriving, 1, False)]
    had = whole.boundary.where(own[whole.boundary.node])
    node, foreign, out, weight = [position[had.node]], [had.foreign], [had.outgoing], [had.weight]
    for mask, end, outgoing in chosen:
        node.append(position[whole.edge_index[end][mask]])
        foreign.append(whole.ids.gather(whole.edge_index[1 - end][mask]).alias("foreign"))
        out.append(np.full(int(mask.sum()), outgoing))
        weight.append(None if whole.edge_weight is None else whole.edge_weight[mask])
    return Boundary(
        np.concatenate(node), pl.concat(foreign), _joined_weights(weight, whole.edge_weight is not None), np.concatenate(out)
    )


def label_column(y: np.ndarray, schema: Schema) -> pl.Series:
    """Labels as they stand in nodes.parquet: names of classes, numbers, or lists of names."""
    match schema.task:
        case "regression":
            return pl.Series("label", y, dtype=pl.Float32).fill_nan(None)
        case "classification":
            names = pl.Series([*schema.classes, None], dtype=pl.String)
            return names.gather(np.where(y < 0, len(schema.classes), y)).alias("label")
        case _:
            rows = [None if np.isnan(row).any() else [schema.classes[c] for c in np.flatnonzero(row)] for row in y]
            return pl.Series("label", rows, dtype=pl.List(pl.String))


def label_values(label: pl.Series, schema: Schema) -> np.ndarray:
    """`label_column` back to y."""
    numbers = {name: number for number, name in enumerate(schema.classes)}
    match schema.task:
        case "regression":
            return label.fill_null(float("nan")).to_numpy().astype(np.float32)
        case "classification":
            if not numbers:
                return np.full(len(label), -1, dtype=np.int64)
            return label.replace_strict(numbers, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy().copy()
        case _:
            y = np.zeros((len(label), len(numbers)), dtype=np.float32)
            for row, names in enumerate(label.to_list()):
                y[row, [numbers[name] for name in names or ()]] = 1.0
                if names is None:
                    y[row] = np.nan
            return y
