"""The scene of a run: its truth, rebuilt from the run folder, by which attacks are judged.

An attacker is given of it only what its `knows` says: `public`, the graphs of those who are no victims, stands for a public
graph of the same kind or, where owners attack, is their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.attacks.hearing import Heard, Noise, Recorded
from suture.core.kernels import Segments
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
        names = [n for n in self.graph.ids if (n in heard.attackers if heard.attackers else n != heard.victim)]
        return merged(self.graph.select(names))

    def clients(self, graph: GraphBatch) -> Clients[Nothing]:
        """A graph as a step sees it, with nothing kept."""
        return Clients(graph, Nothing(graph.ids), Streams.of(self.task.seed, graph.ids, "attack"), self.task)

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


def label_share(graph: GraphBatch, classes: int) -> NDArray[np.float64]:
    """The class distribution of training nodes."""
    counts: Tensor = torch.bincount(graph.y[graph.nodes_in(1)].long(), minlength=classes)
    return np.asarray(counts.numpy() / max(1, int(counts.sum())), float)


def edgeless(graph: GraphBatch) -> GraphBatch:
    """The nodes of a graph without their edges."""
    return GraphBatch(
        graph.ids, graph.segments, graph.x, graph.edge_index[:, :0], graph.y, graph.role, graph.node_id, target=graph.target
    )
