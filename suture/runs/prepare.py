"""From a graph to clients that can be trained: graph -> preprocess -> cut -> census -> clients on their device."""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.graph.batch import Features, GraphBatch, batch_of, feature_matrix, uncut
from suture.graph.cut import Cut, load_manifest, make_cut
from suture.graph.data import num_classes
from suture.graph.links import hide_from_uncut, hide_links
from suture.graph.scaling import Statistics, standardised
from suture.method import Method, Task
from suture.nn.module import ModuleFactory
from suture.runs import origin
from suture.runs.counting import Counts, count, needs_census, target_of
from suture.runs.intake import check_module
from suture.runs.plan import Plan
from suture.runs.preprocess import preprocess
from suture.settings import Protocol

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A graph that has been cut, on the device it will be trained on."""

    dataset: str
    data: Data
    """The whole graph, preprocessed and on the owners' shared scale."""
    cut: Cut
    clients: GraphBatch
    with_hidden_edges: GraphBatch
    """The clients as they would be if none had lost its edges; the same as `clients` if none has."""
    uncut: GraphBatch
    task: Task
    counts: Counts | None = None
    """What the owners told of their data before the run, if they were asked."""
    notes: tuple[str, ...] = ()
    """All that was dropped or assumed."""

    def pieces_for(self, method: Method[Any, Any]) -> GraphBatch:
        """The clients' graphs as a method is shown them."""
        return self.with_hidden_edges if method.sees_hidden_edges else self.clients


def cut_graph(data: Data, dataset: str, protocol: Protocol, seed: int) -> Cut:
    """The cut a protocol prescribes for a preprocessed graph."""
    return make_cut(data, dataset, protocol.preprocess, protocol.partition, protocol.split, seed)


def prepare(
    data: Data,
    dataset: str,
    protocol: Protocol,
    seed: int,
    *,
    cut: Cut | None = None,
    device: str = "cpu",
    module: ModuleFactory | None = None,
) -> Prepared:
    """Lay a preprocessed graph out for training; `cut` (from a manifest) takes the place of a new one."""
    cut = cut or cut_graph(data, dataset, protocol, seed)
    parts = cut.partition
    place = torch.device(device)
    clients = batch_of(data, parts.ids, parts.members, cut.split.client_roles, parts.graphless)
    outputs, counts = num_classes(data), None
    if needs_census(protocol, data):
        counts = count(clients, outputs, protocol, data, seed)
        data, clients = _on_one_scale(data, clients, cut, counts.statistics)
    clients = replace(clients, target=target_of(data, protocol, counts))
    shown = clients
    if any(parts.graphless):
        edges = batch_of(data, parts.ids, parts.members, cut.split.client_roles, [False] * len(parts.ids))
        shown = replace(clients, edge_index=edges.edge_index, edge_weight=edges.edge_weight)
    whole = replace(uncut(data, cut.split.roles), target=clients.target)
    if protocol.task == "link":
        # A pair is scored by its ends' outputs, which are embeddings then, not classes.
        outputs = protocol.model.hidden
        clients, shown = (hide_links(graph, protocol.split, cut.seed) for graph in (clients, shown))
        whole = hide_from_uncut(whole, clients, torch.cat(list(parts.members)))
    if module is not None:
        check_module(module, clients.x.width, outputs)
    metric = counts.metric if counts else protocol.evaluation.metric
    task = Task(clients.x.width, outputs, seed, module, link=protocol.task == "link", metric=metric)
    notes = (*(data.get("notes") or ()), *parts.notes, *cut.split.notes, *(counts.notes if counts else ()))
    return Prepared(dataset, data, cut, clients.to(place), shown.to(place), whole.to(place), task, counts, notes)


def _on_one_scale(data: Data, clients: GraphBatch, cut: Cut, found: Statistics) -> tuple[Data, GraphBatch]:
    """The graph and its pieces with features and edge weights as the statistics say."""
    data = copy.copy(data)
    if found.scale:
        data.x = standardised(data.x, found)
        whole = Features(feature_matrix(data.x), clients.segments)
        clients = replace(clients, x=whole.take(torch.cat(list(cut.partition.members)), clients.segments))
    if found.edge_scale != 1 and clients.edge_weight is not None:
        data.edge_weight = data.edge_weight / found.edge_scale
        clients = replace(clients, edge_weight=clients.edge_weight / found.edge_scale)
    return data, clients


class Source:
    """The graph of a plan and its cuts, all of them made (and so checked) before anything is trained or written."""

    def __init__(
        self,
        made: Plan,
        data: Data | None = None,
        *,
        manifest: Path | None = None,
        module: ModuleFactory | None = None,
        data_root: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.made, self.module, self.device = made, module, device
        begun = time.perf_counter()
        loaded = origin.load(made.dataset, data_root) if data is None else data
        self.graph = preprocess(loaded, made.protocol.preprocess)
        log.info("loaded %s: %d nodes, %.2f s", made.dataset, self.graph.num_nodes, time.perf_counter() - begun)
        self.given = load_manifest(manifest, self.graph) if manifest is not None else None
        self.cuts = {} if self.given is not None else {seed: self._cut(seed) for seed in made.seeds}

    def _cut(self, seed: int) -> Cut:
        begun = time.perf_counter()
        cut = cut_graph(self.graph, self.made.dataset, self.made.protocol, seed)
        sizes = [len(members) for members in cut.partition.members]
        seconds = time.perf_counter() - begun
        log.info("cut for seed %d: %d clients of %d to %d nodes, %.2f s", seed, len(sizes), min(sizes), max(sizes), seconds)
        return cut

    @property
    def graphless(self) -> bool:
        """Whether any client has no edges, in any of the cuts."""
        cuts = [self.given] if self.given is not None else self.cuts.values()
        return any(any(cut.partition.graphless) for cut in cuts)

    def prepared(self, seed: int) -> Prepared:
        """The clients of one seed."""
        made, cut = self.made, self.given or self.cuts[seed]
        return prepare(self.graph, made.dataset, made.protocol, seed, cut=cut, device=self.device, module=self.module)
