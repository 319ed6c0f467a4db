"""Neighbour sampling for mini-batches of all clients at once.

Sampling starts at the seeds and walks outwards, one fan-out a layer; blocks are used the other way round, inputs first. A
node is kept once per batch however often it is sampled. Every draw comes from the drawing client's own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.graph.batch import Features, GraphBatch
from suture.kernels import Segments, SparseMatrix, segments_of
from suture.streams import Streams


@dataclass(frozen=True)
class Block:
    """One layer of a sampled batch, from its input nodes to its output nodes.

    `mean` [outputs, inputs] averages the sampled neighbours, `targets` is where the outputs stand among the inputs.
    """

    mean: SparseMatrix
    targets: Tensor
    segments: Segments


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
) -> tuple[Tensor, Tensor]:
    """Up to `fanout` neighbours of each node: (position in `nodes`, neighbour), both [S].

    `nodes` must be sorted by client. With replacement exactly `fanout` are drawn where there is any neighbour; without,
    a node with fewer neighbours gives all of them.
    """
    adjacency = graph.neighbours
    degree = (adjacency.rowptr[nodes + 1] - adjacency.rowptr[nodes]).long()
    if replace:
        ptr = _segments(nodes, graph).ptr
        draw = (rng.uniform(ptr, fanout) * degree.unsqueeze(1)).long()  # [len(nodes), fanout]
        entry = adjacency.rowptr[nodes].long().unsqueeze(1) + draw
        keep = (degree > 0).unsqueeze(1).expand_as(draw)
        position = torch.arange(nodes.numel(), device=nodes.device).unsqueeze(1).expand_as(draw)
        return position[keep], adjacency.col[entry[keep]].long()
    candidates = adjacency.take_rows(nodes)
    owner = graph.segments.client[nodes][candidates.row]
    ptr = segments_of(owner, len(graph.ids)).ptr
    # A random order inside every row; the first `fanout` of each row are a draw without replacement. Integer keys and a
    # stable sort, because the rounding of row + uniform would depend on where a client stands in the batch.
    order = torch.argsort((candidates.row << 32) | (rng.bits(ptr).squeeze(1) & 0xFFFFFFFF), stable=True)
    place = torch.arange(order.numel(), device=nodes.device) - candidates.rowptr[candidates.row].long()
    chosen = order[place < fanout]
    return candidates.row[chosen], candidates.col[chosen].long()


def sample_batch(graph: GraphBatch, seeds: Tensor, fanouts: Sequence[int], rng: Streams, *, replace: bool) -> SampledBatch:
    """Blocks for `seeds` (sorted by client), `fanouts` given seeds first."""
    blocks: list[Block] = []
    outputs = seeds
    for depth, fanout in enumerate(fanouts):
        position, neighbour = sample_neighbours(outputs, fanout, graph, rng.fork("hop", depth), replace=replace)
        inputs, inverse = torch.unique(torch.cat([outputs, neighbour]), return_inverse=True)
        targets, sources = inverse[: outputs.numel()], inverse[outputs.numel() :]
        weight = 1.0 / torch.bincount(position, minlength=outputs.numel())[position]
        mean = SparseMatrix.from_coo(position, sources, weight, (outputs.numel(), inputs.numel()))
        blocks.append(Block(mean, targets, _segments(outputs, graph)))
        outputs = inputs
    features = graph.x.take(outputs, _segments(outputs, graph))
    return SampledBatch(seeds, features, tuple(reversed(blocks)))
