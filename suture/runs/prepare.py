"""From a graph to clients that can be trained: graph -> preprocess -> cut -> census -> clients on their device."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.core.kernels import SparseMatrix
from suture.core.progress import each, work
from suture.graph.batch import Features, GraphBatch, batch_of, feature_matrix, uncut
from suture.graph.cut import Cut, load_manifest, make_cut
from suture.graph.data import csr_from_parts, num_classes
from suture.graph.links import hide_from_uncut, hide_links
from suture.graph.partition import AUTO, Partition
from suture.graph.scaling import Statistics, scaled, standardised
from suture.method import Method, Task
from suture.nn.module import ModuleFactory
from suture.runs import origin
from suture.runs.counting import Counts, Sent, count, kind_of, needs_census, target_of
from suture.runs.intake import check_module
from suture.runs.matching import matched
from suture.runs.plan import Plan
from suture.runs.preprocess import preprocess
from suture.settings import Protocol, SplitSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A graph that has been cut, on the device it will be trained on."""

    dataset: str
    graph: Data
    """The whole graph, preprocessed."""
    cut: Cut
    clients: GraphBatch
    task: Task
    split: SplitSettings
    """How links are held out, where these are what is predicted."""
    counts: Counts | None = None
    """What the owners told of their data before the run, if they were asked."""
    notes: tuple[str, ...] = ()
    """All that was dropped or assumed."""
    matching: tuple[Sent, ...] = ()
    """What owners sent to find out who holds the foreign ends of their links."""

    # What follows may be as large as the clients' graphs, and most methods never look at it.

    @cached_property
    def data(self) -> Data:
        """The whole graph, preprocessed and on the owners' shared scale."""
        return scaled(self.graph, self.counts.statistics) if self.counts else self.graph

    @cached_property
    def with_hidden_edges(self) -> GraphBatch:
        """The clients as they would be if none had lost its edges; the same as `clients` if none has."""
        parts, clients = self.cut.partition, self.clients
        if not any(parts.graphless):
            return clients
        all_edges = batch_of(self.data, parts.ids, parts.members, self.cut.split.client_roles, [False] * len(parts.ids))
        all_edges = all_edges.to(clients.device)
        shown = replace(clients, edge_index=all_edges.edge_index, edge_weight=all_edges.edge_weight, pairs=None)
        return hide_links(shown, self.split, self.cut.seed) if self.task.link else shown

    @cached_property
    def uncut(self) -> GraphBatch:
        """The whole graph as a single client."""
        whole = replace(uncut(self.data, self.cut.split.roles), target=self.clients.target).to(self.clients.device)
        if not self.task.link:
            return whole
        return hide_from_uncut(whole, self.clients, torch.cat(list(self.cut.partition.members)).to(whole.device))

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
    known = protocol.partition.boundary
    clients = batch_of(data, parts.ids, parts.members, cut.split.client_roles, parts.graphless, known)
    outputs, counts, link = num_classes(data), None, protocol.task == "link"
    if needs_census(protocol, kind_of(data), data.get("edge_weight") is not None):
        counts = count(clients, outputs, protocol, data, seed)
        clients = _pieces_on_one_scale(clients, counts.statistics)
    clients = replace(clients, target=target_of(data, protocol, counts))
    if link:
        # A pair is scored by its ends' outputs, which are embeddings then, not classes.
        clients, outputs = hide_links(clients, protocol.split, cut.seed), protocol.model.hidden
    if module is not None:
        check_module(module, clients.x.width, outputs)
    said: tuple[str, ...] = ()
    sent: tuple[Sent, ...] = ()
    if protocol.partition.matching == "private" and clients.boundary is not None:
        found = matched(clients, protocol.partition, seed)
        clients, said, sent = found.clients, found.notes, found.sent
    metric = counts.metric if counts else protocol.evaluation.metric
    task = Task(clients.x.width, outputs, seed, module, link=link, metric=metric)
    unheard = _unheard(data, parts) if protocol.partition.kind == AUTO and known == "none" else ()
    counted = counts.notes if counts else ()
    notes = (*(data.get("notes") or ()), *parts.notes, *unheard, *cut.split.notes, *counted, *said)
    return Prepared(dataset, data, cut, clients.to(torch.device(device)), task, protocol.split, counts, notes, sent)


def _unheard(data: Data, parts: Partition) -> Iterator[str]:
    """Edges that no client hears, because each has its own piece only."""
    owner_N = torch.full((int(data.num_nodes),), -1)
    for number, members in enumerate(parts.members):
        owner_N[members] = number
    crossing, ways = (
        int((owner_N[data.edge_index[0]] != owner_N[data.edge_index[1]]).sum()),
        1 if data.get("directed") else 2,
    )
    if crossing:
        edges = data.edge_index.shape[1] // ways
        yield f"{crossing // ways:,} of {edges:,} edges lie between owners: no message passes over them in their pieces"
    if data.get("boundary_node") is not None and data.boundary_node.numel():
        yield f"{data.boundary_node.numel():,} boundary edges lead out of the graph: no message passes over them"


def _pieces_on_one_scale(clients: GraphBatch, found: Statistics) -> GraphBatch:
    """The clients' graphs, scaled. Nobody else has their features yet, so dense ones are changed where they are."""
    m = clients.x.matrix
    if isinstance(m, SparseMatrix):
        listed = csr_from_parts(m.rowptr.long(), m.col.long(), m.val, (m.rows, m.columns))
        clients = replace(clients, x=Features(feature_matrix(standardised(listed, found)), clients.segments))
    elif found.scale:
        m.sub_(torch.tensor(found.shift)).div_(torch.tensor(found.scale))
        clients = replace(clients, x=Features(m, clients.segments))
    if clients.edge_weight is not None:
        clients = replace(clients, edge_weight=clients.edge_weight / found.edge_scale)
    return clients


class Source:
    """The graph of a plan and its cuts, all of them made (and so checked) before anything is trained or written."""

    def __init__(
        self,
        made: Plan,
        data: Data | None = None,
        *,
        manifest: Path | None = None,
        manifests: Mapping[int, Path] | None = None,
        module: ModuleFactory | None = None,
        data_root: Path | None = None,
        device: str = "cpu",
    ) -> None:
        """`manifest` has the cut of all seeds, `manifests` that of each; without either, graphs are cut by the protocol."""
        self.made, self.module, self.device = made, module, device
        begun = time.perf_counter()
        loaded = origin.load(made.dataset, data_root) if data is None else data
        self.graph = preprocess(loaded, made.protocol.preprocess)
        log.info("loaded %s: %d nodes, %.2f s", made.dataset, self.graph.num_nodes, time.perf_counter() - begun)
        self.given = load_manifest(manifest, self.graph) if manifest is not None else None
        if manifests is not None:
            self.cuts = {seed: load_manifest(path, self.graph) for seed, path in manifests.items()}
            return
        seeds = () if self.given is not None else made.seeds
        self.cuts = {seed: self._cut(seed) for seed in each("partition", "cutting", seeds, "cuts", "seed {}".format)}

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
        with work("prepare", "laying out the pieces"):
            return prepare(self.graph, made.dataset, made.protocol, seed, cut=cut, device=self.device, module=self.module)
