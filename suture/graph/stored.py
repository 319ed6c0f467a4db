"""Graphs that stay on disk: features and edges mapped into memory, and of these only what a step looks at.

    stored.json    format, owners with how many nodes and entries each, features, classes
    x.npy          float32 [N, F], owner after owner
    rowptr.npy     int64 [N + 1], where the neighbours of each node begin
    column.npy     int32 [E]: the nodes each node hears from, counted inside its owner; edges between owners are not there
    y.npy          int64 [N], -1 unlabelled;  role.npy  int8 [N], as in `GraphBatch`
    node.npy       int64 [N], the number each node had before it was laid out

`lay_out` writes it from arrays that may be mapped themselves, an owner at a time; `StoredGraph.open` reads it as a batch of
clients of which the engine takes some at a time. What is derived of a client (operators) is forgotten after each step, and
pages that were read are given back, so that memory is that of the clients that compute together, not of the graph.
Legend: N nodes, E entries, F features, K clients.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.storage import disk_errors, read_json, write_json
from suture.errors import DataError
from suture.graph.batch import Features, GraphBatch

FORMAT, ABOUT = "suture-stored/1", "stored.json"
ARRAYS = ("x", "rowptr", "column", "y", "role", "node")
ROWS_AT_ONCE = 1 << 18
DERIVED = ("neighbours", "weighted_neighbours", "mean_operator", "gcn_operator", "degree", "train")


@dataclass(frozen=True)
class StoredGraph(GraphBatch):
    """Clients whose features and edges are on disk. `edge_index` is empty: neighbours are read from the files."""

    files: tuple[NDArray[Any], ...] = ()
    """The mapped arrays, in the order of `ARRAYS`."""
    first: int = 0
    """Where the clients begin in the files."""

    @staticmethod
    def open(folder: Path | str) -> StoredGraph:
        """All clients of a folder that `lay_out` wrote."""
        folder = Path(folder)
        if not (folder / ABOUT).is_file():
            raise DataError(
                f"{folder} is not a stored graph (it has no {ABOUT}); write one with suture.graph.stored.lay_out"
            )
        about: dict[str, Any] = read_json(folder / ABOUT, "stored graph's")
        if about.get("format") != FORMAT:
            raise DataError(
                f"{folder} has the format {about.get('format')!r}, this version reads {FORMAT!r}; write it again"
            )
        with disk_errors("read", folder):
            files = tuple(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS)
        sizes = about["sizes"]
        if sum(sizes) != files[0].shape[0] or files[1].size != files[0].shape[0] + 1:
            raise DataError(f"{folder} has other sizes than {ABOUT} says; write it again")
        return _view(files, tuple(about["owners"]), 0, Segments(torch.tensor([0, *np.cumsum(sizes)])))

    def select(self, ids: Sequence[str]) -> GraphBatch:
        """Clients that lie next to each other in the files, in that order; others cannot be had without copying."""
        if tuple(ids) == self.ids:
            return self
        place = self.ids.index(ids[0])
        if self.ids[place : place + len(ids)] != tuple(ids):
            raise DataError("clients of a stored graph are taken one at a time, or in their order: use chunks of one")
        bounds = self.segments.ptr[place : place + len(ids) + 1]
        return _view(self.files, tuple(ids), self.first + int(bounds[0]), Segments(bounds - bounds[0]))

    @cached_property
    def neighbours(self) -> SparseMatrix:
        """Row v lists the neighbours v hears from, mapped; their weights are all one."""
        _, rowptr, column, *_ = self.files
        begin, end = int(rowptr[self.first]), int(rowptr[self.first + self.num_nodes])
        if end - begin >= 2**31:
            raise DataError(f"{end - begin:,} entries are too many for one chunk of clients: use smaller ones")
        pointer = torch.from_numpy((rowptr[self.first : self.first + self.num_nodes + 1] - begin).astype(np.int32))
        entries = torch.from_numpy(column[begin:end])
        if len(self.ids) > 1:  # counted inside each client
            owner = torch.repeat_interleave(self.segments.client, pointer.diff())
            entries = (entries + self.segments.ptr[:-1][owner]).int()
        return SparseMatrix(pointer, entries, torch.ones(1).expand(end - begin), self.num_nodes)

    @cached_property
    def graphless(self) -> Tensor:
        """Which clients have no edge, bool [K]."""
        ends = torch.from_numpy(self.files[1][self.first + self.segments.ptr.numpy()])
        return ends.diff() == 0

    @property
    def mean_input_once(self) -> Features | None:
        """Not kept: it would be as large as the features."""
        return None

    @property
    def gcn_input_once(self) -> Features | None:
        """Not kept: it would be as large as the features."""
        return None

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """Not for graphs on disk: it would be a copy of the edges with a weight for each."""
        raise DataError("graphs on disk are trained with model.kind=sage on sampled neighbours, as fedsage does")

    def release(self) -> None:
        """Forget what was derived, and give back pages that were read."""
        for name in DERIVED:
            vars(self).pop(name, None)
        for file in self.files:
            mapped = getattr(file, "_mmap", None)
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def to(self, device: torch.device) -> GraphBatch:
        """Itself: what is on disk is read by the processor."""
        if device != self.device:
            raise DataError("a graph on disk is trained on the CPU; lay it out in memory for another device")
        return self


def _view(files: tuple[NDArray[Any], ...], ids: tuple[str, ...], first: int, segments: Segments) -> StoredGraph:
    x, _, _, y, role, node = files
    here = slice(first, first + segments.total)
    return StoredGraph(
        ids,
        segments,
        Features(torch.from_numpy(x[here]), segments),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.from_numpy(y[here]),
        torch.from_numpy(role[here]),
        torch.from_numpy(node[here]),
        files=files,
        first=first,
    )


@dataclass(frozen=True)
class Source:
    """A whole graph as arrays, which may be mapped: x [N, F], the neighbours of v in column[rowptr[v]:rowptr[v + 1]]."""

    x: NDArray[np.float32]
    rowptr: NDArray[np.int64]
    column: NDArray[np.int64]
    y: NDArray[np.int64]
    role: NDArray[np.int8]


def lay_out(folder: Path, source: Source, owner: NDArray[np.int64], names: Sequence[str]) -> StoredGraph:
    """Write a graph owner after owner; edges between owners are left out, as everywhere where nobody knows of them."""
    folder.mkdir(parents=True, exist_ok=True)
    order, sizes = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(names))
    place = np.empty(owner.size, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    place[order] = np.arange(owner.size) - np.repeat(starts[:-1], sizes)
    writer = Writer(folder, list(names), sizes.tolist(), source.x.shape[1])
    for number in range(len(names)):
        members = order[starts[number] : starts[number + 1]]
        count, column = _inside(source, owner, place, members, number)
        for some in np.array_split(members, max(1, members.size // ROWS_AT_ONCE)):
            writer.nodes(source.x[some], source.y[some], source.role[some], some)
        writer.edges(count, column)
    return writer.close()


def _inside(
    source: Source, owner: NDArray[np.int64], place: NDArray[np.int32], members: NDArray[np.int64], number: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """How many neighbours inside its owner each of these nodes has, and which, counted there."""
    counts, columns = [], []
    for some in np.array_split(members, max(1, members.size // ROWS_AT_ONCE)):
        degree = source.rowptr[some + 1] - source.rowptr[some]
        row = np.repeat(np.arange(some.size), degree)
        ends = np.concatenate([[0], np.cumsum(degree)])
        entry = np.arange(ends[-1]) - np.repeat(ends[:-1], degree) + np.repeat(source.rowptr[some], degree)
        far = source.column[entry]
        mine = owner[far] == number
        counts.append(np.bincount(row[mine], minlength=some.size))
        columns.append(place[far[mine]])
    return np.concatenate(counts), np.concatenate(columns)


class Writer:
    """Writes a stored graph in the order in which it lies: nodes and edges of one owner, then of the next."""

    def __init__(self, folder: Path, names: list[str], sizes: list[int], features: int) -> None:
        nodes = sum(sizes)
        self.folder, self.about = folder, {"format": FORMAT, "owners": names, "sizes": sizes, "features": features}
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "x": ((nodes, features), np.float32), "rowptr": ((nodes + 1,), np.int64), "y": ((nodes,), np.int64),
            "role": ((nodes,), np.int8), "node": ((nodes,), np.int64),
        }  # fmt: skip
        self.arrays = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
            for name, (shape, dtype) in shapes.items()
        }
        self.column = (folder / "column.raw").open("wb")
        self.rows = self.with_edges = self.entries = 0

    def nodes(self, x: NDArray[Any], y: NDArray[Any], role: NDArray[Any], node: NDArray[Any]) -> None:
        """The next nodes."""
        here = slice(self.rows, self.rows + len(x))
        for name, values in (("x", x), ("y", y), ("role", role), ("node", node)):
            self.arrays[name][here] = values
        self.rows = here.stop

    def edges(self, count: NDArray[Any], column: NDArray[Any]) -> None:
        """The neighbours of the next nodes, `count` of each."""
        here = slice(self.with_edges + 1, self.with_edges + 1 + count.size)
        self.arrays["rowptr"][here] = self.entries + np.cumsum(count)
        self.with_edges, self.entries = self.with_edges + count.size, self.entries + column.size
        column.astype(np.int32).tofile(self.column)

    def close(self) -> StoredGraph:
        """Complete the folder and open it."""
        self.column.close()
        for array in self.arrays.values():
            array.flush()
        raw, header = self.folder / "column.raw", {"descr": "<i4", "fortran_order": False, "shape": (self.entries,)}
        with (self.folder / "column.npy").open("wb") as out, raw.open("rb") as written:
            np.lib.format.write_array_header_1_0(out, header)
            while chunk := written.read(1 << 24):
                out.write(chunk)
        raw.unlink()
        labels = self.arrays["y"]
        classes = max(int(labels[at : at + (1 << 24)].max(initial=-1)) for at in range(0, max(1, labels.size), 1 << 24)) + 1
        write_json(self.folder / ABOUT, {**self.about, "classes": classes, "entries": self.entries})
        return StoredGraph.open(self.folder)
