"""From a graph to clients that can be trained: graph -> preprocess -> cut -> clients on their device."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.graph import datasets
from suture.graph.batch import GraphBatch, batch_of, uncut
from suture.graph.checks import validate
from suture.graph.cut import Cut, load_manifest, make_cut
from suture.graph.data import largest_component, num_classes, row_normalise
from suture.graph.links import hide_from_uncut, hide_links
from suture.method import Method, Task
from suture.nn.module import ModuleFactory
from suture.runs.plan import Plan
from suture.settings import PreprocessSettings, Protocol, SplitSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A graph that has been cut, on the device it will be trained on."""

    dataset: str
    data: Data
    cut: Cut
    clients: GraphBatch
    task: Task
    split: SplitSettings
    """How links are held out, where these are what is predicted."""

    @cached_property
    def with_hidden_edges(self) -> GraphBatch:
        """The clients as they would be if none had lost its edges; the same as `clients` if none has."""
        parts = self.cut.partition
        if not any(parts.graphless):
            return self.clients
        shown = batch_of(self.data, parts.ids, parts.members, self.cut.split.client_roles, [False] * len(parts.ids))
        shown = replace(self.clients, edge_index=shown.edge_index.to(self.clients.device), pairs=None)
        return hide_links(shown, self.split, self.cut.seed) if self.task.link else shown

    @cached_property
    def uncut(self) -> GraphBatch:
        """The whole graph as one client; few methods see it."""
        whole = replace(uncut(self.data, self.cut.split.roles), target=self.clients.target).to(self.clients.device)
        if not self.task.link:
            return whole
        return hide_from_uncut(whole, self.clients, torch.cat(list(self.cut.partition.members)).to(whole.device))

    def pieces_for(self, method: Method[Any, Any]) -> GraphBatch:
        """The clients' graphs as a method is shown them."""
        return self.with_hidden_edges if method.sees_hidden_edges else self.clients


def preprocess(data: Data, settings: PreprocessSettings) -> Data:
    """What a protocol does to the whole graph before the cut."""
    data = validate(data)
    if settings.largest_component:
        data = largest_component(data)
    return row_normalise(data) if settings.row_normalise else data


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
    clients = batch_of(data, parts.ids, parts.members, cut.split.client_roles, parts.graphless)
    link, outputs, metric = protocol.task == "link", num_classes(data), protocol.evaluation.metric
    if link:
        # A pair is scored by its ends' outputs, which are embeddings then, not classes.
        clients, outputs = hide_links(clients, protocol.split, cut.seed), protocol.model.hidden
    task = Task(clients.x.width, outputs, seed, module, link=link, metric=metric)
    return Prepared(dataset, data, cut, clients.to(torch.device(device)), task, protocol.split)


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
        loaded = datasets.load(made.dataset, data_root) if data is None else data
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

    def prepared(self, seed: int) -> Prepared:
        """The clients of one seed."""
        made, cut = self.made, self.given or self.cuts[seed]
        return prepare(self.graph, made.dataset, made.protocol, seed, cut=cut, device=self.device, module=self.module)
