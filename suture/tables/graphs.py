"""A graph of another library to a graph folder: every feature is a column of its own, numbered unless it has a name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from suture.errors import DataError
from suture.graph.data import MASKS, num_classes, refuse_several_splits, scipy_matrix
from suture.tables.convert import from_any
from suture.tables.edges import Boundary
from suture.tables.engine import pl
from suture.tables.features import Matrix
from suture.tables.folder import GraphFolder, write_folder
from suture.tables.pieces import Piece
from suture.tables.preparing import check_owner
from suture.tables.schema import Column, Roles, Schema, Task
from suture.tables.summary import Summary

ROLES = Roles(id=("id",), label=("label",), source=("source",), target=("target",), weight="weight")
"""What columns of tables that come later are called."""


def import_graph(out: Path, graph: object, *, x: object = None, y: object = None) -> tuple[GraphFolder, Summary]:
    """Write a graph that `from_any` takes as a folder; `x` and `y` are its features and labels if it has none.

    Raises:
        DataError: Says what in the graph cannot be trained on, or not be kept in a folder.
    """
    data, summary = from_any(graph, x=x, y=y), Summary()
    matrix: Matrix = scipy_matrix(data.x) if data.x.layout == torch.sparse_csr else data.x.numpy()
    schema = _schema(data, _flags(matrix))
    summary.account("nodes", "graph", int(data.num_nodes), {})
    for note in data.notes:
        summary.note("graph", note, "changed" if "dropped" not in note else "dropped")
    marked = sum(schema.standardise)
    summary.note("features", f"{marked:,} are no flags of 0 and 1", "kept, standardised when a run starts", marked)
    return write_folder(out, [_piece(data, matrix)], schema, summary), summary


def _flags(matrix: Matrix) -> np.ndarray:
    """Which columns hold nothing but 0 and 1, bool [F]."""
    if isinstance(matrix, np.ndarray):
        flags: np.ndarray = ((matrix == 0) | (matrix == 1)).all(axis=0)
    else:
        others = matrix.indices[(matrix.data != 0) & (matrix.data != 1)]
        flags = np.bincount(others, minlength=matrix.shape[1]) == 0
    return flags


def _schema(data: Data, flags_F: np.ndarray) -> Schema:
    names = data.get("feature_names") or [f"x{number}" for number in range(len(flags_F))]
    marked = data.standardise.numpy() if data.get("standardise") is not None else ~flags_F
    columns = [
        Column(str(name), "boolean" if flag else "numeric", standardise=bool(mark))
        for name, flag, mark in zip(names, flags_F, marked, strict=True)
    ]
    task: Task = data.task
    classes = data.get("class_names") or [str(number) for number in range(num_classes(data))]
    unlabelled = task == "classification" and int(data.y.max()) < 0 and not data.get("class_names")
    named = () if task == "regression" or unlabelled else tuple(map(str, classes))
    return Schema(tuple(columns), ROLES, task, named, bool(data.directed))


def _piece(data: Data, matrix: Matrix) -> Piece:
    nodes = int(data.num_nodes)
    if data.task == "regression" and data.y.dim() == 2:
        raise DataError("a graph folder holds one number to predict for each node; run several from Python as they are")
    refuse_several_splits(data, "a graph folder")
    split = np.zeros(nodes, dtype=np.int8)
    for role, name in enumerate(MASKS, start=1):
        if data.get(name) is not None:
            chosen = data[name].numpy()
            if split[chosen].any():
                raise DataError(f"data.{name} shares nodes with another mask: each node may have one role")
            split[chosen] = role
    weight = data.edge_weight.numpy() if data.get("edge_weight") is not None else None
    owner = _owner(data)
    return Piece(
        ids=pl.Series("id", data.get("node_name") or [str(number) for number in range(nodes)], dtype=pl.String),
        owner=owner,
        y=data.y.numpy(),
        split=split,
        x=matrix,
        edge_index=data.edge_index.numpy(),
        edge_weight=weight,
        boundary=_boundary(data, weight is not None),
        graphless=_graphless(data) if owner is not None else (),
    )


def _owner(data: Data) -> pl.Series | None:
    if data.get("client") is None:
        return None
    names = [check_owner(str(name)) for name in data.owners]
    return pl.Series("owner", [names[number] for number in data.client.tolist()], dtype=pl.String)


def _graphless(data: Data) -> tuple[str, ...]:
    """Owners none of whose nodes are linked with each other."""
    source, target = data.client[data.edge_index]
    linked = set(source[source == target].tolist())
    return tuple(str(data.owners[number]) for number in data.client.unique().tolist() if number not in linked)


def _boundary(data: Data, weighted: bool) -> Boundary:
    if data.get("boundary_node") is None:
        return Boundary.none(weighted)
    weight = data.boundary_weight.numpy() if data.get("boundary_weight") is not None else None
    foreign = pl.Series("foreign", data.boundary_foreign, dtype=pl.String)
    return Boundary(data.boundary_node.numpy(), foreign, weight, data.boundary_outgoing.numpy())
