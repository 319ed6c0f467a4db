"""Canaries: records that an auditor puts into a client's data, each so that nothing hides it but the mechanism under audit.

    gradients   m training nodes without edges, whose loss is linear in one weight of the real network each: their gradients
                are far too long, stand alone in one coordinate, and never fade. They go where every example goes: Poisson
                draws, clipping, noise, optimiser. One that is left out has the loss zero, so that the rate of drawing stays.
    sums        m pairs of nodes that know nobody else, linked or not; at node level m nodes that tell D others, or nobody
    draws       m nodes with D neighbours each, and one more or not

Signs alternate from epoch to epoch, so that noise that was drawn once and used again takes itself away in a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.streams import Streams, generator
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch
from suture.nn.aggregates import noised_sums
from suture.nn.sampler import sample_neighbours
from suture.privacy.audited import Heard
from suture.settings import ModelSettings
from suture.training.batches import Batch
from suture.training.local import Objective

FAR_TOO_LONG = 10.0
"""The length of a canary's gradient, as a multiple of what it may be."""


def coins(canaries: int, seed: int) -> Tensor:
    """Which canaries are put in, bool [m]; drawn apart from everything a run draws."""
    return torch.rand(canaries, generator=generator(seed, "coins of canaries")) < 0.5


def enlarged(graph: GraphBatch, like: Tensor | None, count: int, role: int) -> GraphBatch:
    """One client's graph with `count` more nodes without edges: with the features of nodes `like` [count], or with none."""
    nodes = graph.num_nodes + count
    segments = Segments(torch.tensor([0, nodes]))
    blank = graph.y.new_zeros(count, *graph.y.shape[1:])
    return replace(
        graph,
        segments=segments,
        x=Features(_more_rows(graph.x.matrix, like, count), segments),
        y=torch.cat([graph.y, blank if like is None else graph.y[like]]),
        role=torch.cat([graph.role, graph.role.new_full((count,), role)]),
        node_id=torch.cat([graph.node_id, graph.node_id.new_full((count,), -1)]),
        boundary=None,  # nothing that is audited looks beyond the client
    )


def _more_rows(matrix: Tensor | SparseMatrix, like: Tensor | None, count: int) -> Tensor | SparseMatrix:
    if not isinstance(matrix, SparseMatrix):
        return torch.cat([matrix, matrix.new_zeros(count, matrix.shape[1]) if like is None else matrix[like]])
    if like is not None:
        return matrix.take_rows(torch.cat([torch.arange(matrix.rows), like]))
    return SparseMatrix(torch.cat([matrix.rowptr, matrix.rowptr[-1:].expand(count)]), matrix.col, matrix.val, matrix.columns)


@dataclass
class GradientCanaries:
    """Canaries among one client's training examples; `first` is the position of the first of them."""

    first: int
    included: Tensor
    places: Sequence[tuple[str, int]]
    """Each canary's weight: the name of a tensor, and which of its numbers."""
    clip: float
    sign: float = 1.0

    @staticmethod
    def among(
        graph: GraphBatch, params: Tree, trained: Sequence[str], canaries: int, clip: float, seed: int
    ) -> GradientCanaries:
        """For weights drawn from all that are trained."""
        sizes = [params[name][0].numel() for name in trained]
        starts = torch.tensor([0, *sizes]).cumsum(0)
        drawn = torch.randperm(int(starts[-1]), generator=generator(seed, "weights of canaries"))[:canaries].sort().values
        tensor = torch.searchsorted(starts, drawn, right=True) - 1
        places = [(trained[t], int(at - starts[t])) for t, at in zip(tensor.tolist(), drawn.tolist(), strict=True)]
        order = torch.randperm(len(places), generator=generator(seed, "order of canaries")).tolist()
        return GradientCanaries(graph.num_nodes, coins(len(places), seed), [places[i] for i in order], clip)

    def loss(self, params: Tree, batch: Batch, real: Objective) -> Tensor:
        """The loss [1] of one example: a canary's own, or the real one."""
        node = int(batch.view.nodes[0]) if batch.view.nodes.numel() else -1
        if node < self.first:
            return real(params, batch)
        name, place = self.places[node - self.first]
        length = FAR_TOO_LONG * self.clip * self.sign * float(self.included[node - self.first])
        return length * params[name].flatten(1)[:, place]

    def at(self, params: Tree) -> Tensor:
        """The canaries' weights, float64 [m]."""
        flat = {name: value[0].detach().flatten().double() for name, value in params.items()}
        return torch.stack([flat[name][place] for name, place in self.places])


def sum_canaries(graph: GraphBatch, settings: ModelSettings, outputs: int, canaries: int, seed: int) -> Heard:
    """The real noised sums of one client's graph with canaries in it; a score is one a hop for what was put in."""
    told = settings.gap_max_degree if settings.gap_level == "node" else 1
    nodes = told + 1
    like = torch.randint(graph.num_nodes, (canaries * nodes,), generator=generator(seed, "features of canaries"))
    larger = enlarged(graph, like, canaries * nodes, role=0)
    first = graph.num_nodes + torch.arange(canaries) * nodes
    source = first.repeat_interleave(told)
    target = source + torch.arange(told).repeat(canaries) + 1
    listed = torch.stack([source, target])
    if settings.gap_level == "edge":
        listed = torch.stack([listed, listed.flip(0)], 2).flatten(1)
    each, included = listed.shape[1] // canaries, coins(canaries, seed)
    present = listed[:, included.repeat_interleave(each)]
    larger = replace(larger, edge_index=torch.cat([graph.edge_index, present], 1), edge_weight=None)
    score = torch.zeros(canaries, dtype=torch.float64)
    for row, total in noised_sums(larger, settings, outputs, seed):
        heard = (total[listed[1]].double() * row[listed[0]].double()).sum(1)
        score += heard.view(canaries, each).mean(1)
    return Heard(score, included)


def draw_canaries(graph: GraphBatch, degree: int, fanout: int, replace_drawn: bool, canaries: int, seed: int) -> Heard:
    """One real draw of neighbours at `canaries` nodes of `degree` neighbours, one of whom more was put in or not."""
    size, included = degree + 2, coins(canaries, seed)
    larger = enlarged(graph, torch.zeros(canaries * size, dtype=torch.int64), canaries * size, role=0)
    centre = graph.num_nodes + torch.arange(canaries) * size
    target = centre.repeat_interleave(degree + 1)
    source = target + torch.arange(degree + 1).repeat(canaries) + 1
    present = torch.ones(canaries, degree + 1, dtype=torch.bool)
    present[:, -1] = included
    edges = torch.stack([source, target])[:, present.flatten()]
    larger = replace(larger, edge_index=torch.cat([graph.edge_index, edges], 1), edge_weight=None)
    rng = Streams.of(seed, larger.ids, "drawn for canaries")
    position, neighbour, _ = sample_neighbours(centre, fanout, larger, rng, replace=replace_drawn)
    seen = neighbour == centre[position] + degree + 1
    return Heard(torch.bincount(position, seen.double(), minlength=canaries), included)
