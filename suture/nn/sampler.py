"""Neighbour sampling for mini-batches of all clients at once.

Sampling starts at the seeds and walks outwards, one fan-out a layer; blocks are used the other way round, inputs first. A
node is kept once per batch however often it is sampled. Every draw comes from the drawing client's own stream.

Neighbours are drawn alike, whatever their edges weigh, and weigh afterwards: of d neighbours with weights w_u that sum to W,
m drawn ones count w_u d / (W m) each. In expectation that is the weighted mean, and exactly so where all are drawn; without
weights it is the plain mean of those drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, pointers, segments_of
from suture.core.streams import Streams
from suture.graph.batch import Features, GraphBatch


@dataclass(frozen=True)
class Block:
    """One layer of a sampled batch, from its input nodes to its output nodes.

    `mean` [outputs, inputs] averages the sampled neighbours, `targets` is where the outputs stand among the inputs.
    `own` are the outputs' features, in the block whose inputs are features: the others need not be projected with them.
    """

    mean: SparseMatrix
    targets: Tensor
    segments: Segments
    own: Features | None


@dataclass(frozen=True)
class SampledBatch:
    """Seeds [B] (flat positions), the features of all input nodes, and the blocks from inputs to seeds."""

    seeds: Tensor
    inputs: Features
    blocks: tuple[Block, ...]


def _segments(nodes: Tensor, graph: GraphBatch) -> Segments:
    return segments_of(graph.segments.client[nodes], len(graph.ids))


def sample_neighbours(
    nodes: Tensor, fanout: int, graph: GraphBatch, rng: Streams, *, replace: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Up to `fanout` neighbours of each node: (position in `nodes`, ascending; neighbour; what it counts), each [S].

    `nodes` must be sorted by client. With replacement exactly `fanout` are drawn where there is any neighbour; without,
    a node with fewer neighbours gives all of them.
    """
    adjacency = graph.mean_operator  # the neighbours, with their shares of the weighted mean
    degree = (adjacency.rowptr[nodes + 1] - adjacency.rowptr[nodes]).long()
    if replace:
        ptr = _segments(nodes, graph).ptr
        draw = (rng.uniform(ptr, fanout) * degree.unsqueeze(1)).long()  # [len(nodes), fanout]
        entry = adjacency.rowptr[nodes].long().unsqueeze(1) + draw
        keep = (degree > 0).unsqueeze(1).expand_as(draw)
        position = torch.arange(nodes.numel(), device=nodes.device).unsqueeze(1).expand_as(draw)
        position, entry = position[keep], entry[keep]
        return position, adjacency.col[entry].long(), _shares(position, adjacency.val[entry], degree, graph)
    candidates = adjacency.take_rows(nodes)
    owner = graph.segments.client[nodes][candidates.row]
    ptr = segments_of(owner, len(graph.ids)).ptr
    # A random order inside every row; the first `fanout` of each row are a draw without replacement. Integer keys and a
    # stable sort, because the rounding of row + uniform would depend on where a client stands in the batch.
    order = torch.argsort((candidates.row << 32) | (rng.bits(ptr).squeeze(1) & 0xFFFFFFFF), stable=True)
    place = torch.arange(order.numel(), device=nodes.device) - candidates.rowptr[candidates.row].long()
    chosen = order[place < fanout]
    position = candidates.row[chosen]
    return position, candidates.col[chosen].long(), _shares(position, candidates.val[chosen], degree, graph)


def _shares(position: Tensor, share: Tensor, degree: Tensor, graph: GraphBatch) -> Tensor:
    """What drawn neighbours count [S], from their shares of the mean over all `degree` neighbours."""
    plain = 1.0 / torch.bincount(position, minlength=degree.numel())[position]
    return plain if graph.edge_weight is None else share * degree[position] * plain


def sample_batch(graph: GraphBatch, seeds: Tensor, fanouts: Sequence[int], rng: Streams, *, replace: bool) -> SampledBatch:
    """Blocks for `seeds` (sorted by client), `fanouts` given seeds first."""
    blocks: list[Block] = []
    nodes, segments = seeds, _segments(seeds, graph)
    place = torch.empty(graph.num_nodes, dtype=torch.int64, device=graph.device)
    for depth, fanout in enumerate(fanouts):
        own = graph.x.take(nodes, segments) if depth == len(fanouts) - 1 else None
        position, neighbour, share = sample_neighbours(nodes, fanout, graph, rng.fork("hop", depth), replace=replace)
        # A mark at every node, not torch.unique, which sorts.
        marked = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        marked[nodes], marked[neighbour] = True, True
        inputs = torch.nonzero(marked).squeeze(1)
        place[inputs] = torch.arange(inputs.numel(), device=graph.device)
        count = torch.bincount(position, minlength=nodes.numel())
        # Positions ascend, so the neighbours are in CSR order already.
        mean = SparseMatrix(pointers(count).int(), place[neighbour].int(), share, inputs.numel())
        blocks.append(Block(mean, place[nodes], segments, own))
        nodes, segments = inputs, Segments(torch.searchsorted(inputs, graph.segments.ptr))
    return SampledBatch(seeds, graph.x.take(nodes, segments), tuple(reversed(blocks)))
