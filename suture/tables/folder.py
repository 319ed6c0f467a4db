"""A graph on disk: what `suture import` writes.

    folder.json      format, sizes, owners, graphless owners, and the SHA-256 of every other file
    schema.json      see `suture.tables.schema`
    summary.json     everything that was read, kept, changed and left out; summary.txt says the same in words
    nodes.parquet    id (text), owner, label, split (train, val, test), in the order of positions
    features.npy     float32 [N, F]; or features.rowptr.npy, features.column.npy and features.value.npy, a CSR matrix
    edges.npy        int64 [2, E] of positions, sorted; in both directions unless the graph is directed
    weights.npy      float32 [E], if edges have weights
    boundary.parquet node (position), foreign (id as text), outgoing, weight

Arrays are mapped into memory, not read. A folder is written beside its place and renamed: it is there as a whole or not at
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.storage import disk_errors, inside, read_json, refuse_links, sha256_of_file, staged_folder, write_json
from suture.errors import DataError, IntegrityError
from suture.graph.data import MASKS, csr_from_parts
from suture.tables.edges import Boundary
from suture.tables.engine import pl
from suture.tables.features import Matrix
from suture.tables.pieces import Piece, label_column, label_values, pieces_of
from suture.tables.schema import Schema, read_schema
from suture.tables.summary import Summary, listed

FORMAT = "suture-graph/1"
ABOUT, SCHEMA, SUMMARY, TEXT = "folder.json", "schema.json", "summary.json", "summary.txt"
NODES, EDGES, WEIGHTS, BOUNDARY, DENSE = "nodes.parquet", "edges.npy", "weights.npy", "boundary.parquet", "features.npy"
SPARSE = ("features.rowptr.npy", "features.column.npy", "features.value.npy")
SPLIT_NAMES = (None, "train", "val", "test")


@dataclass(frozen=True)
class GraphFolder:
    """A graph folder that was read; arrays stay on disk until they are used."""

    path: Path
    schema: Schema
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path | str, check: bool = True) -> GraphFolder:
        """Open a folder; with `check`, every file must still have its hash.

        Raises:
            DataError: It is not a graph folder.
            IntegrityError: A file is missing or is not the one that was written.
        """
        path = Path(path)
        if not (path / ABOUT).is_file():
            raise DataError(
                f"{path} is not a graph folder (it has no {ABOUT}); make one with: suture import {path} --nodes FILE"
            )
        refuse_links(path)
        about = read_json(path / ABOUT, "graph folder's")
        files = about.get("files")
        if about.get("format") != FORMAT or not isinstance(files, dict):
            raise DataError(f"{path} has the format {about.get('format')!r}, this version reads {FORMAT!r}; import it again")
        for name, expected in files.items() if check else ():
            if not inside(path, name).is_file() or sha256_of_file(path / name) != expected:
                raise IntegrityError(
                    f"{path / name} is missing or was changed since it was written; import the tables again"
                )
        return cls(path, read_schema(path / SCHEMA), about)

    @property
    def owners(self) -> tuple[str, ...]:
        """Names in the order of their numbers; empty if the graph was imported as one whole."""
        return tuple(self.about["owners"])

    @property
    def graphless(self) -> tuple[str, ...]:
        """Owners that have nodes but no edges."""
        return tuple(self.about["graphless"])

    def summary(self) -> Summary:
        """What the import said."""
        return Summary.from_json(read_json(self.path / SUMMARY, "summary"))

    def nodes(self) -> pl.DataFrame:
        """id, owner, label and split of every node."""
        return pl.read_parquet(self.path / NODES)

    def features(self) -> Matrix:
        """float32 [N, F], mapped from disk."""
        if (self.path / DENSE).is_file():
            return self._array(DENSE)
        rowptr, column, value = (self._array(name) for name in SPARSE)
        return sp.csr_matrix((value, column, rowptr), shape=(rowptr.size - 1, len(self.schema.feature_names)), copy=False)

    def piece(self) -> Piece:
        """Everything, as arrays."""
        nodes = self.nodes()
        table = pl.read_parquet(self.path / BOUNDARY)
        weight = table["weight"].to_numpy() if "weight" in table.columns else None
        return Piece(
            ids=nodes["id"],
            owner=nodes["owner"] if self.owners else None,
            y=label_values(nodes["label"], self.schema),
            split=nodes["split"]
            .replace_strict(dict(zip(SPLIT_NAMES, range(4), strict=True)), return_dtype=pl.Int8)
            .to_numpy(),
            x=self.features(),
            edge_index=self._array(EDGES),
            edge_weight=self._array(WEIGHTS) if (self.path / WEIGHTS).is_file() else None,
            boundary=Boundary(table["node"].to_numpy(), table["foreign"], weight, table["outgoing"].to_numpy()),
            graphless=self.graphless,
        )

    def to_data(self) -> Data:
        """The graph as PyG `Data`; docs/own-data.md lists its attributes."""
        return to_data(self.piece(), self.schema, self.owners)

    def per_owner(self, out: Path | str) -> dict[str, Path]:
        """Write each owner's piece as a graph folder of its own below `out`; edges between owners become boundary edges."""
        if not self.owners:
            raise DataError(f"{self.path} has no owners; import it with --owner COLUMN or --owner-name NAME")
        written = {}
        for owner, piece in pieces_of(self.piece(), self.owners, self.schema.directed):
            summary = Summary()
            summary.note(
                f"owner {owner}", f"its part of {self.path.name}", "kept: own nodes and edges, edges to others as boundary"
            )
            written[owner] = Path(out) / owner
            write_folder(written[owner], [piece], self.schema, summary)
        return written

    def _array(self, name: str) -> np.ndarray:
        with disk_errors("read", self.path / name):
            # Copy on write: torch wants arrays that may be written to, and the file must not change.
            array: np.ndarray = np.load(self.path / name, mmap_mode="c", allow_pickle=False)
            return array


def to_data(piece: Piece, schema: Schema, owners: Sequence[str]) -> Data:
    """Arrays as PyG `Data`."""
    data = Data(x=_tensor(piece.x), edge_index=torch.from_numpy(piece.edge_index), y=torch.from_numpy(piece.y))
    if piece.edge_weight is not None:
        data.edge_weight = torch.from_numpy(piece.edge_weight)
    if piece.owner is not None:
        numbers = {name: number for number, name in enumerate(owners)}
        data.client = torch.from_numpy(piece.owner.replace_strict(numbers, return_dtype=pl.Int64).to_numpy().copy())
    if piece.split.any():
        for number, name in enumerate(MASKS, start=1):
            data[name] = torch.from_numpy(piece.split == number)
    data.owners, data.graphless = list(owners), list(piece.graphless)
    data.directed, data.task = schema.directed, schema.task
    data.standardise = torch.tensor(schema.standardise, dtype=torch.bool)
    data.feature_names, data.class_names = list(schema.feature_names), list(schema.classes)
    data.node_name = piece.ids.to_list()
    data.boundary_node = torch.from_numpy(np.array(piece.boundary.node, dtype=np.int64))
    data.boundary_foreign = piece.boundary.foreign.to_list()
    data.boundary_outgoing = torch.from_numpy(np.array(piece.boundary.outgoing, dtype=bool))
    if piece.boundary.weight is not None:
        data.boundary_weight = torch.from_numpy(np.array(piece.boundary.weight, dtype=np.float32))
    return data


def _tensor(x: Matrix) -> Tensor:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    rowptr, column = (torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in (x.indptr, x.indices))
    return csr_from_parts(rowptr, column, torch.from_numpy(x.data), x.shape)


def write_folder(
    path: Path, pieces: Sequence[Piece], schema: Schema, summary: Summary, replace: bool = False
) -> GraphFolder:
    """Write pieces, one after the other, as one graph folder; an existing one is only replaced if that is asked for."""
    path = Path(path)
    if path.exists() and not replace and (not path.is_dir() or any(path.iterdir())):
        raise DataError(f"{path} is there already; choose another folder, or add an owner to it with --add")
    with staged_folder(path) as folder:
        whole = Piece.concat(pieces, folder)
        _write_arrays(folder, whole)
        _write_tables(folder, whole, schema)
        schema.write(folder / SCHEMA)
        owners = [] if whole.owner is None else sorted(whole.owner.unique().to_list())
        summary.facts = {**_facts(whole, schema, owners), **summary.facts}
        write_json(folder / SUMMARY, summary.to_json())
        (folder / TEXT).write_text(summary.text() + "\n", encoding="utf-8")
        files = {file.name: sha256_of_file(file) for file in sorted(folder.iterdir())}
        about = {
            "format": FORMAT, "nodes": len(whole.ids), "edges": int(whole.edge_index.shape[1]),
            "features": len(schema.feature_names), "boundary": int(whole.boundary.node.size), "directed": schema.directed,
            "task": schema.task, "owners": owners, "graphless": list(whole.graphless), "files": files,
        }  # fmt: skip
        write_json(folder / ABOUT, about)
    return GraphFolder.read(path, check=False)


def _facts(whole: Piece, schema: Schema, owners: list[str]) -> dict[str, str]:
    edges = whole.edge_index.shape[1] // (1 if schema.directed else 2)
    touched = np.zeros(len(whole.ids), dtype=bool)
    touched[whole.edge_index.ravel()] = True
    touched[whole.boundary.node] = True
    facts = {
        "nodes": f"{len(whole.ids):,}, {int((~touched).sum()):,} of them without an edge (kept)",
        "edges": f"{edges:,} {'directed' if schema.directed else 'undirected'}, {whole.boundary.node.size:,} boundary edges",
        "features": f"{len(schema.feature_names):,} of {len(schema.used):,} columns",
        "task": schema.task,
    }
    if schema.classes:
        facts["classes"] = f"{len(schema.classes)} ({listed(list(schema.classes))})"
    known = whole.y >= 0 if schema.task == "classification" else ~np.isnan(whole.y.reshape(len(whole.ids), -1)).any(axis=1)
    facts["labelled"] = f"{int(known.sum()):,} nodes"
    if owners:
        facts["owners"] = f"{len(owners)} ({listed(owners, 10)})"
    if whole.graphless:
        facts["without edges"] = ", ".join(whole.graphless)
    return facts


def _write_arrays(folder: Path, whole: Piece) -> None:
    arrays: dict[str, np.ndarray] = {EDGES: whole.edge_index}
    if whole.edge_weight is not None:
        arrays[WEIGHTS] = whole.edge_weight
    if sp.issparse(whole.x):
        parts = (whole.x.indptr.astype(np.int64), whole.x.indices.astype(np.int64), whole.x.data.astype(np.float32))
        arrays |= dict(zip(SPARSE, parts, strict=True))
    elif not (folder / DENSE).is_file():
        arrays[DENSE] = whole.x
    for name, array in arrays.items():
        np.save(folder / name, array, allow_pickle=False)


def _write_tables(folder: Path, whole: Piece, schema: Schema) -> None:
    owner = (
        pl.Series("owner", [None] * len(whole.ids), dtype=pl.String) if whole.owner is None else whole.owner.alias("owner")
    )
    names = pl.Series("split", list(SPLIT_NAMES), dtype=pl.String)
    split = names.gather(whole.split.astype(np.int64)).alias("split")
    pl.DataFrame([whole.ids.alias("id"), owner, label_column(whole.y, schema), split]).write_parquet(folder / NODES)
    boundary = whole.boundary
    table = pl.DataFrame({"node": boundary.node, "foreign": boundary.foreign, "outgoing": boundary.outgoing})
    if boundary.weight is not None:
        table = table.with_columns(pl.Series("weight", boundary.weight))
    table.write_parquet(folder / BOUNDARY)
