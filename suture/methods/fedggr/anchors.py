r"""Anchors in place of a graph over everybody's nodes (FedGGR with `codes = "anchors"`).

A graph of nearest neighbours tells a node what others that are like it have. So do a few hundred points among all clients'
codes, found by k-means, of which every node takes the mean of the nearest (anchor graphs: Liu, He and Chang, Large graph
construction for scalable semi-supervised learning, ICML 2010). Who is near which anchor only its own client knows, and what
is made of the anchors there is trained and averaged like all weights. The server needs sums over everybody's nodes alone:

    1  server: anchors a_1..a_A;  client k: s_ka <- sum of its codes nearest to a, c_ka <- how many there are
    2  server: a <- sum_k s_ka / sum_k c_ka, where there are any; before the first placing the same gives centre and scale
    3  Z_v = MLP(sum_{a near v} w_va a), w_va the cosine of v's code and a, cut off at 0, over their sum

A client leaves anchors out that fewer than `smallest` of its nodes are nearest to.
Legend: K clients, N nodes, P code width, A anchors, H hidden units, G width of global embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, activate, segment_product
from suture.core.streams import Streams, generator
from suture.core.tree import Tree
from suture.nn.layers import dropout, linear_init

PLACES, CENTRE, SCALE, MASS = "places", "centre", "scale", "mass"
"""Anchors as everybody is told them: [1, A, P] in units of scale [1, 1, 1] from the centre [1, 1, P]; nodes at each [1, A].
"""
FIRST, SECOND = "anchors1", "anchors2"


def unplaced(anchors: int, width: int) -> Tree:
    """Before anything is known: all nodes are nearest to the first of equal anchors."""
    known = {CENTRE: torch.zeros(1, 1, width), SCALE: torch.ones(1, 1, 1), MASS: torch.zeros(1, anchors)}
    return {PLACES: torch.zeros(1, anchors, width), **known}


def drawn_anchors(before: Tree, mean_P: Tensor, square_P: Tensor, seed: int) -> Tree:
    """The first places: at random, with the centre and the spread that all codes have."""
    spread_P = (square_P - mean_P.square()).clamp_min(0).sqrt()
    scale = spread_P.square().mean().sqrt().clamp_min(1e-12)
    normal = torch.randn(before[PLACES].shape, generator=generator(seed, "first anchors")).to(spread_P.device)
    known = {CENTRE: mean_P.view(1, 1, -1), SCALE: scale.view(1, 1, 1), MASS: torch.ones_like(before[MASS])}
    return {PLACES: normal * spread_P / scale, **known}


def moved_anchors(before: Tree, sum_AP: Tensor, count_A: Tensor) -> Tree:
    """Line 2; an anchor that is nearest to nobody stays where it is."""
    means = sum_AP / count_A.clamp_min(1e-12).unsqueeze(1)
    places = torch.where((count_A > 0).unsqueeze(1), means, before[PLACES][0])
    return before | {PLACES: places.unsqueeze(0), MASS: count_A.unsqueeze(0)}


def measured(codes_NP: Tensor, anchors: Tree, segments: Segments) -> Tensor:
    """Codes from the centre, in its units, [N, P]."""
    return (codes_NP - anchors[CENTRE][segments.client, 0]) / anchors[SCALE][segments.client, 0]


def near_sums(codes_NP: Tensor, anchors: Tree, segments: Segments, smallest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Line 1: (s [K, A, P], c float [K, A], sums of squares [K, P]) of each client, without anchors of too few nodes."""
    x_NP, places_KAP = measured(codes_NP, anchors, segments), anchors[PLACES]
    clients, count, width = places_KAP.shape
    distance = places_KAP.square().sum(2)[segments.client] - 2 * segment_product(x_NP, places_KAP.mT.contiguous(), segments)
    cell = segments.client * count + distance.argmin(1)
    held = torch.bincount(cell, minlength=clients * count)
    told = (held >= smallest)[cell].unsqueeze(1)
    sums = x_NP.new_zeros(clients * count, width).index_add(0, cell, x_NP * told)
    squares = x_NP.new_zeros(clients, width).index_add(0, segments.client, x_NP.square() * told)
    return sums.view_as(places_KAP), torch.where(held >= smallest, held, 0).view(clients, count).float(), squares


@dataclass(frozen=True)
class AnchorBranch:
    """Line 3: settings and pure functions of its weights [K, ...]."""

    width: int
    near: int
    dropout: float
    """Of the hidden layer."""
    code_dropout: float
    """Of what it reads."""

    def init(self, hidden: int, outputs: int, rng: torch.Generator) -> Tree:
        """Fresh weights [1, ...]."""
        return linear_init(FIRST, self.width, hidden, rng) | linear_init(SECOND, hidden, outputs, rng)

    def alike(self, codes_NP: Tensor, anchors: Tree, segments: Segments) -> Tensor:
        """Cosines of each node's code and every anchor, [N, A]; 0 for anchors that are nearest to nobody."""
        x_NP, places_KAP = measured(codes_NP, anchors, segments), anchors[PLACES]
        alike_NA = segment_product(F.normalize(x_NP), F.normalize(places_KAP, dim=2).mT.contiguous(), segments)
        return alike_NA.masked_fill((anchors[MASS] == 0)[segments.client], 0.0)

    def heard(self, codes_NP: Tensor, anchors: Tree, segments: Segments) -> Tensor:
        """The mean of the anchors near each node, [N, P]; of those only that are nearest to somebody."""
        places_KAP = anchors[PLACES]
        clients, count, width = places_KAP.shape
        alike, chosen = self.alike(codes_NP, anchors, segments).topk(min(self.near, count), 1)
        weight = alike.clamp_min(0)
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        flat, row = places_KAP.reshape(clients * count, width), segments.client * count
        # One anchor at a time: all of a node's at once would be many times the codes.
        mean_NP = torch.zeros_like(codes_NP)
        for j in range(chosen.shape[1]):
            mean_NP.addcmul_(weight[:, [j]], flat[row + chosen[:, j]])
        return mean_NP

    def embeddings(self, params: Tree, heard_BP: Tensor, segments: Segments, rng: Streams | None = None) -> Tensor:
        """Z [B, G]; with `rng`, dropout is on."""
        read = dropout(heard_BP, rng and rng.fork("codes"), self.code_dropout, segments)
        h = activate(segment_product(read, params[f"{FIRST}.weight"], segments), params[f"{FIRST}.bias"], segments)
        h = dropout(h, rng, self.dropout, segments)
        out = segment_product(h, params[f"{SECOND}.weight"], segments)
        return activate(out, params[f"{SECOND}.bias"], segments, relu=False)
