"""The server's graph over everybody's nodes, learned from their codes, and a GCN on it (FedGGR, equations 6 to 8).

Legend: N nodes of all clients, P code width, G width of global embeddings, M links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from suture.core.kernels import Segments, segment_product
from suture.core.message import Rows
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.nn.graph_learner import GraphLearner, LearnedGraph
from suture.nn.layers import dropout, linear_init
from suture.nn.topk import Links


@dataclass(frozen=True)
class ServerGraph:
    """Settings and pure functions of its weights W_S, [1, ...]."""

    learner: GraphLearner
    dropout: float
    """Of the GCN's hidden layer."""
    code_dropout: float
    """Of what the GCN reads; neighbours are found by whole codes."""

    def init(self, hidden: int, width: int, rng: torch.Generator) -> Tree:
        """The generator of equation (6), which starts as the identity, and the GCN of equation (8)."""
        gcn = linear_init("gcn1", self.learner.width, hidden, rng) | linear_init("gcn2", hidden, width, rng)
        return self.learner.init() | gcn

    def search(self, own: Tree, codes_NP: Tensor, known: Tensor | None = None) -> Tensor:
        """The neighbours of equation (6), [1, 2, M]; `known` are those of the last search, where there was one."""
        before = None if known is None or known.shape[2] == 0 else Links(known[0, 0], known[0, 1], codes_NP.shape[0])
        with torch.no_grad():
            segments = _one_piece(codes_NP)
            links = self.learner.links(self.learner.generate(own, codes_NP, segments), segments, before)
        return torch.stack([links.node, links.neighbour]).unsqueeze(0)

    def embeddings(self, own: Tree, codes_NP: Tensor, links: Tensor, rng: Streams | None = None) -> Tensor:
        """Z [N, G]; with `rng`, dropout is on."""
        segments = _one_piece(codes_NP)
        node, neighbour = links[0]
        r_NP = self.learner.generate(own, codes_NP, segments)
        graph = self.learner.process(r_NP, Links(node, neighbour, codes_NP.shape[0]))
        read = dropout(codes_NP, rng and rng.fork("codes"), self.code_dropout, segments)
        h = _convolved(graph, read, own["gcn1.weight"], segments) + own["gcn1.bias"]
        h = dropout(torch.relu(h), rng, self.dropout, segments)
        return _convolved(graph, h, own["gcn2.weight"], segments) + own["gcn2.bias"]


class Known(TypedDict):
    """What the server knows of the nodes; see `GraphServer`."""

    codes: Tree
    longest: int


def known_codes(ids: Sequence[str], codes: Rows, nodes_K: Tensor, *, scaled: bool = True) -> Known:
    """From the codes of these clients, in the order of names, and how many nodes they have."""
    order = sorted(range(len(ids)), key=lambda k: ids[k])
    chosen = comparable(codes.select(order)) if scaled else codes.select(order)
    pieces = {ids[k]: chosen.select([place]).values.unsqueeze(0) for place, k in enumerate(order)}
    return Known(codes=pieces, longest=int(nodes_K.max()))


def comparable(codes: Rows) -> Rows:
    """E centred and in one scale, whatever the auto-encoders made of it."""
    centred = codes.values - codes.values.mean(0)
    return Rows(centred / centred.std().clamp_min(1e-12), codes.ptr)


def everybodys(codes: Tree) -> Tensor:
    """E, clients in the order of their names, [N, P]."""
    return torch.cat([value[0] for value in codes.values()])


def pieces_of(z_NG: Tensor, codes: Tree) -> dict[str, Tensor]:
    """Z_i under the name of each client whose codes are known, [N_i, G]."""
    sizes = {name: value.shape[1] for name, value in codes.items()}
    return dict(zip(sizes, torch.split(z_NG, list(sizes.values())), strict=True)) if sizes else {}


def whole_gradient(pieces: Mapping[str, Tensor], z_NG: Tensor, codes: Tree) -> Tensor:
    """The gradient of Z [N, G] from that of some clients' Z_i; from a client that was not asked none comes."""
    silent = {name: z_NG.new_zeros(value.shape[1], z_NG.shape[1]) for name, value in codes.items()}
    return torch.cat([pieces.get(name, nothing).to(z_NG.device) for name, nothing in silent.items()])


def _convolved(graph: LearnedGraph, h: Tensor, weight: Tensor, segments: Segments) -> Tensor:
    """A* h W; edges carry the narrower of h and h W."""
    if h.shape[1] <= weight.shape[2]:
        return segment_product(graph.times(h), weight, segments)
    return graph.times(segment_product(h, weight, segments))


def _one_piece(rows: Tensor) -> Segments:
    return Segments(torch.tensor([0, rows.shape[0]], device=rows.device))
