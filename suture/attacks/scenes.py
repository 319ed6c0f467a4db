"""The scene of a run: its truth, rebuilt from the run folder, by which attacks are judged.

An attacker is given of it only what its `knows` says: `public`, the graphs of those who are no victims, stands for a public
graph of the same kind or, where owners attack, is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.attacks.hearing import Heard, Noise, Recorded
from suture.core.kernels import Segments, SparseMatrix
from suture.core.message import Nothing
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.method import Clients, Method, Task
from suture.privacy.tape import TapeReader
from suture.runs import folder as folders
from suture.runs.prepare import Source

SEALED = "sealed"
"""The engine whose server sees of replies that can be summed their sum alone."""
Made = TypeVar("Made")
MOST_VICTIMS = 5
"""More clients are not attacked: what holds for five holds for the rest, and time is bounded."""


@dataclass(frozen=True)
class Scene:
    """The graphs of all clients as they were trained on, the method, and what was recorded."""

    name: str
    method: Method[Any, Any]
    task: Task
    graph: GraphBatch
    recorded: Recorded
    sealed: bool = False
    """The server was shown sums where these are enough."""

    @staticmethod
    def read(path: Path, data_root: Path | None = None, *, noise: bool = False) -> Scene:
        """Of a recorded run; with `noise` its messages say nothing, as a control."""
        asked = folders.read_asked(path)
        if folders.is_comparison(path):
            runs = [str(folders.place_of(path, method, seed)) for method in asked.methods for seed in asked.seeds]
            raise ConfigError(f"{path} is a comparison; choose one of its runs: {', '.join(runs)}")
        tape, manifest = path / folders.TAPE, folders.manifest_of(path)
        if manifest is None:
            raise ConfigError(f"the pieces of {path} are with their owners, and nobody else can judge an attack on them")
        if not tape.exists():
            raise ConfigError(f"the messages of {path} were not recorded; train it again with --record")
        if asked.own_module:
            raise ConfigError(f"the network of {path} was your own, and cannot be rebuilt to attack it")
        made = folders.read_plan(path)
        prepared = Source(made, manifest=manifest, data_root=data_root).prepared(made.seeds[0])
        method = made.methods[0]
        if method.sees_uncut_graph:
            raise ConfigError(f"{method.name} trains one client that holds everything: nobody hears anything of anybody")
        kind = Noise if noise else Recorded
        graph, recorded = prepared.pieces_for(method), kind(TapeReader(tape), method)
        return Scene(str(path), method, prepared.task, graph, recorded, asked.engine == SEALED)

    def heard(self, view: str) -> dict[str, Heard]:
        """What is heard of each victim."""
        ids = self.graph.ids
        if view == "server":
            sums = frozenset(self.method.sums) if self.sealed else frozenset()
            return {victim: Heard(self.recorded, victim, None, sums) for victim in ids[:MOST_VICTIMS]}
        if len(ids) < 2:
            return {}
        if view == "owner":
            first = frozenset(ids[:1])
            return {victim: Heard(self.recorded, victim, first) for victim in ids[1 : 1 + MOST_VICTIMS]}
        return {victim: Heard(self.recorded, victim, frozenset(ids) - {victim}) for victim in ids[:MOST_VICTIMS]}

    def own(self, client: str) -> GraphBatch:
        """One client's graph; the truth, unless the attacker is that client."""
        return self.graph.select([client])

    def public(self, heard: Heard) -> GraphBatch:
        """As one client: the graphs of the attackers, or for the server those of all but the victim."""
        names = tuple(n for n in self.graph.ids if (n in heard.attackers if heard.attackers else n != heard.victim))
        return self.once(("public", names), partial(self._together, names))

    def _together(self, names: tuple[str, ...]) -> GraphBatch:
        return merged(self.graph.select(names))

    def clients(self, graph: GraphBatch) -> Clients[Nothing]:
        """A graph as a step sees it, with nothing kept."""
        return Clients(graph, Nothing(graph.ids), Streams.of(self.task.seed, graph.ids, "attack"), self.task)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What several views need, made for the first that asks."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])

    @cached_property
    def _made(self) -> dict[Hashable, object]:
        return {}

    @cached_property
    def label_shares(self) -> dict[str, NDArray[np.float64]]:
        """The class distribution of each client's training nodes."""
        return {name: label_share(self.own(name), self.task.classes) for name in self.graph.ids}


def merged(graph: GraphBatch, name: str = "public") -> GraphBatch:
    """Several clients' graphs as one client's."""
    segments = Segments(torch.tensor([0, graph.num_nodes]))
    return GraphBatch(
        (name,),
        segments,
        Features(graph.x.matrix, segments),
        graph.edge_index,
        graph.y,
        graph.role,
        graph.node_id,
        None,
        graph.edge_weight,
        graph.target,
    )


def nodes_with(graph: GraphBatch) -> Tensor:
    """How many nodes have each feature, [F]."""
    matrix = graph.x.matrix
    if not isinstance(matrix, SparseMatrix):
        return matrix.ne(0).sum(0)
    return torch.bincount(matrix.col[matrix.val != 0].long(), minlength=matrix.columns)


def mean_row(graph: GraphBatch) -> NDArray[np.float64]:
    """Of all nodes' features, [F]."""
    matrix = graph.x.matrix
    if not isinstance(matrix, SparseMatrix):
        return np.asarray(matrix.double().mean(0).numpy(), float)
    total = torch.zeros(matrix.columns, dtype=torch.float64).index_add_(0, matrix.col.long(), matrix.val.double())
    return np.asarray(total.numpy() / graph.num_nodes, float)


def some_rows(graph: GraphBatch, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The features of these nodes, [len(nodes), F]: of a large graph all would take gigabytes."""
    matrix, index = graph.x.matrix, torch.from_numpy(nodes)
    chosen = matrix.take_rows(index).to_dense() if isinstance(matrix, SparseMatrix) else matrix[index]
    return np.asarray(chosen.double().numpy(), float)


def label_share(graph: GraphBatch, classes: int) -> NDArray[np.float64]:
    """The class distribution of training nodes."""
    counts: Tensor = torch.bincount(graph.y[graph.nodes_in(1)].long(), minlength=classes)
    return np.asarray(counts.numpy() / max(1, int(counts.sum())), float)


def edgeless(graph: GraphBatch) -> GraphBatch:
    """The nodes of a graph without their edges."""
    return GraphBatch(
        graph.ids, graph.segments, graph.x, graph.edge_index[:, :0], graph.y, graph.role, graph.node_id, target=graph.target
    )
