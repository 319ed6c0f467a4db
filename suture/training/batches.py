"""The batches of one epoch for K clients at once: training nodes or pairs, full, in mini-batches, or drawn for DP-SGD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from suture.core.kernels import Segments, segments_of
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, Pairs, View
from suture.graph.links import pair_keys, sample_non_edges
from suture.nn.backbones import Backbone, Sage
from suture.nn.sampler import SampledBatch, sample_batch
from suture.privacy.mechanisms import poisson_sample
from suture.settings import TrainingSettings
from suture.training.losses import nodes_loss, pairs_loss


@dataclass(frozen=True)
class LinkTarget:
    """Pairs to tell apart. Shapes: left and right [P] rows of a batch's view, label [P], client [P]."""

    left: Tensor
    right: Tensor
    label: Tensor
    client: Tensor


@dataclass(frozen=True)
class Batch:
    """One optimiser step's training nodes (or the end nodes of its training pairs), and the stream that drops units."""

    graph: GraphBatch
    view: View
    rng: Streams
    sampled: SampledBatch | None = None
    links: LinkTarget | None = None
    due: Tensor | None = None
    """DP-SGD: which clients make this step, bool [K], be it without any example; None: those that have one."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    """Which loss is asked for."""

    @property
    def active(self) -> Tensor:
        """Clients that make this step, bool [K]."""
        return self.counts > 0 if self.due is None else self.due

    @cached_property
    def counts(self) -> Tensor:
        """Examples of each client in the batch, nodes or pairs, int64 [K]."""
        if self.links is None:
            return self.view.segments.ptr.diff()
        return torch.bincount(self.links.client, minlength=len(self.graph.ids))

    def logits(self, backbone: Backbone, params: Tree) -> Tensor:
        """The network's output [B, C] at the view's nodes, with dropout on."""
        if self.sampled is not None and isinstance(backbone, Sage):
            return backbone.sampled_logits(params, self.sampled, self.rng)
        return backbone.logits(params, self.graph, self.rng, self.view)

    def loss(self, backbone: Backbone, params: Tree) -> Tensor:
        """Mean loss of each client's examples, [K], by what their labels mean; zero for a client without any.

        A pair's is binary, its score being the inner product of its ends' outputs.
        """
        out = self.logits(backbone, params)
        if self.links is None:
            return self.loss_of(out)
        link = self.links
        score = (out[link.left] * out[link.right]).sum(1)
        return pairs_loss(score, link.label, link.client, len(self.graph.ids), self.settings)

    def loss_of(self, out_BC: Tensor) -> Tensor:
        """The same for outputs [B, C] at the view's nodes, however they were computed."""
        graph, view = self.graph, self.view
        return nodes_loss(out_BC, graph.y[view.nodes], view.segments.client, len(graph.ids), graph.target, self.settings)


def batches(graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """One epoch. Mini-batch b holds the b-th batch of every client that has so many."""
    if settings.dp_sigma > 0:
        yield from _poisson_batches(graph, settings, rng)
        return
    if graph.pairs is not None:
        yield from _link_batches(graph, graph.pairs, settings, rng)
        return
    nodes, segments = graph.train.nodes, graph.train.segments
    if settings.batch_size == 0:
        yield Batch(graph, graph.train, rng.fork("dropout"), settings=settings)
        return
    for b, chosen in enumerate(_portions(segments, settings.batch_size, rng)):
        yield _batch(View(graph, nodes[chosen]), settings, rng.fork("batch", b))


def _portions(segments: Segments, size: int, rng: Streams) -> Iterator[Tensor]:
    """Rows of each mini-batch: every client's rows shuffled, then `size` at a time, sorted by client."""
    shuffled = rng.fork("shuffle").shuffle(segments.ptr)
    number = segments.place // size
    for b in range(int(number.max()) + 1 if number.numel() else 0):
        yield shuffled[number == b]


def _poisson_batches(graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """As many steps as an epoch of mini-batches has, each with its own draw of every client's training nodes."""
    if graph.pairs is not None:
        raise ConfigError(
            "training.dp_sigma protects nodes as training examples; in link prediction an edge also carries messages to "
            "other examples, so it would protect nothing: set training.dp_sigma=0"
        )
    nodes, segments = graph.train.nodes, graph.train.segments
    count_K = graph.num_train
    size_K = expected_batch(graph, settings)
    steps_K = -(-count_K // size_K.clamp_min(1))
    for b in range(int(steps_K.max()) if steps_K.numel() else 0):
        stream, due = rng.fork("batch", b), b < steps_K
        drawn = poisson_sample(segments, size_K / count_K.clamp_min(1), stream.fork("draw")) & due[segments.client]
        yield Batch(graph, View(graph, nodes[drawn]), stream, due=due, settings=settings)


def expected_batch(graph: GraphBatch, settings: TrainingSettings) -> Tensor:
    """Training nodes each client expects in a step of DP-SGD, int64 [K]."""
    return graph.num_train.clamp_max(settings.batch_size) if settings.batch_size else graph.num_train


def examples(batch: Batch, settings: TrainingSettings) -> Iterator[Batch]:
    """The j-th example of every client that has so many, for j = 0, 1, ..., each a batch of its own."""
    place = batch.view.segments.place
    for j in range(int(batch.counts.max())):
        yield _batch(View(batch.graph, batch.view.nodes[place == j]), settings, batch.rng.fork("example", j))


def _batch(view: View, settings: TrainingSettings, rng: Streams, links: LinkTarget | None = None) -> Batch:
    sampled = None
    if settings.fanouts:
        sampled = sample_batch(view.graph, view.nodes, settings.fanouts, rng.fork("sample"), replace=settings.replace)
    return Batch(view.graph, view, rng.fork("dropout"), sampled, links, settings=settings)


def _link_batches(graph: GraphBatch, pairs: Pairs, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """Training edges, all or `batch_size` at a time, each batch with as many fresh non-edges."""
    edges = pairs.nodes[:, pairs.role == 1]
    owner = graph.segments.client[edges[0]]
    order = torch.argsort(owner, stable=True)
    edges, segments = edges[:, order], segments_of(owner, len(graph.ids))
    known = pair_keys(edges, graph.num_nodes).sort().values
    everything = torch.arange(edges.shape[1], device=graph.device)
    portions = _portions(segments, settings.batch_size, rng) if settings.batch_size else iter([everything])
    for b, chosen in enumerate(portions):
        stream, present = rng.fork("batch", b), edges[:, chosen]
        counts = torch.bincount(graph.segments.client[present[0]], minlength=len(graph.ids))
        absent = sample_non_edges(graph, counts, known, stream)
        ends = torch.cat([present, absent], 1)
        nodes, row = torch.unique(ends, return_inverse=True)
        label = torch.cat([torch.ones(present.shape[1]), torch.zeros(absent.shape[1])]).to(graph.device)
        target = LinkTarget(row[0], row[1], label, graph.segments.client[ends[0]])
        yield _batch(View(graph, nodes), settings, stream, target)
