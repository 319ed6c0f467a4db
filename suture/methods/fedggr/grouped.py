r"""Groups of nodes that have one code together (FedGGR with `codes = "groups"`).

Who is alike is decided by \hat A^2 X, which the codes are projections of, itself projected on a few random directions
(Johnson and Lindenstrauss, 1984): before any power iteration, so that also these see groups only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.streams import generator
from suture.graph.batch import Features, GraphBatch
from suture.graph.grouping import Groups, alike_groups
from suture.methods.fedggr.autoencoder import smoothed

DIRECTIONS = 32
"""Random directions that nodes are compared by."""


def code_groups(graph: GraphBatch, smallest: int, seed: int) -> Groups:
    """Each client's nodes in groups of at least `smallest`, made once for a graph."""

    def build() -> Groups:
        points_ND = smoothed(graph, _projected(graph.x, graph.lasting_seed(seed, "code groups", smallest)))
        return alike_groups(points_ND, graph.segments, smallest)

    return graph.once("code groups", (seed, smallest), build)


def coded(graph: GraphBatch, groups: Groups | None) -> Tensor:
    """The number of the code that each node has a part in, inside its client, [N]; -1: it has none."""
    if groups is None:
        return graph.segments.place
    return torch.where(groups.of >= 0, groups.of - groups.segments.ptr[:-1][graph.segments.client], -1)


def _projected(x: Features, seed: int) -> Tensor:
    """Features along random directions, [N, D], the same whoever stands beside a client."""
    rng = generator(seed, "directions of groups")
    sign = torch.randint(0, 2, (x.width, DIRECTIONS), generator=rng, device="cpu") * 2 - 1
    if isinstance(x.matrix, SparseMatrix):
        return x.matrix.times(sign.float().to(x.matrix.val.device))
    return (x.matrix.double() @ sign.double().to(x.matrix.device)).float()
