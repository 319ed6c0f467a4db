"""k-means of K clients at once: each client's points are grouped apart from everybody else's.

Seeds are drawn as in k-means++ (Arthur and Vassilvitskii, SODA 2007), then Lloyd's two steps alternate until no point
changes its cluster. All sums are in double precision, so that a client groups its points alike alone and in a batch.
Legend: K clients, N points of all clients, C clusters, D width of a point.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.kernels import Segments, segment_product
from suture.core.streams import Streams


def kmeans(
    points_ND: Tensor, segments: Segments, clusters: int, rng: Streams, iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """(centres [K, C, D], cluster of each point int64 [N]). Fewer than C different points leave some centres equal."""
    points = points_ND.double()
    centre_KCD = seeds(points, segments, clusters, rng)
    cluster = nearest(points, centre_KCD, segments)
    for _ in range(iterations):
        centre_KCD = _means(points, cluster, centre_KCD, segments)
        moved = nearest(points, centre_KCD, segments)
        if torch.equal(moved, cluster):
            break
        cluster = moved
    return centre_KCD.to(points_ND.dtype), cluster


def seeds(points_ND: Tensor, segments: Segments, clusters: int, rng: Streams) -> Tensor:
    """C points of each client, [K, C, D]: the next one is drawn with probability proportional to its squared distance."""
    # The smallest of Exp(1) / weight is a draw proportional to the weights, with one stream a point and no running sum,
    # whose rounding would depend on where a client stands in the batch.
    race_NC = -torch.log1p(-rng.uniform(segments.ptr, clusters))
    padded = torch.cat([points_ND, points_ND.new_zeros(1, points_ND.shape[1])])  # a client without points gets the last
    distance = torch.ones(segments.total, dtype=points_ND.dtype, device=points_ND.device)
    chosen = []
    for c in range(clusters):
        pick = _first_smallest(race_NC[:, c] / distance, segments)
        chosen.append(padded[pick])
        apart = (points_ND - chosen[-1][segments.client]).square().sum(1)
        distance = apart if c == 0 else torch.minimum(distance, apart)
    return torch.stack(chosen, 1)


def nearest(points_ND: Tensor, centre_KCD: Tensor, segments: Segments) -> Tensor:
    """The closest of its owner's centres to each point, int64 [N]; of equal centres the first, however it is rounded."""
    # |x - c|^2 without |x|^2, which is the same for all centres.
    inner = segment_product(points_ND, centre_KCD.transpose(1, 2), segments)
    closest = (centre_KCD.square().sum(2)[segments.client] - 2 * inner).argmin(1)
    clusters = centre_KCD.shape[1]
    equal_KCC = (centre_KCD.unsqueeze(2) == centre_KCD.unsqueeze(1)).all(3)
    first_KC = torch.where(equal_KCC, torch.arange(clusters, device=closest.device), clusters).amin(2)
    return first_KC[segments.client, closest]


def _means(points_ND: Tensor, cluster: Tensor, centre_KCD: Tensor, segments: Segments) -> Tensor:
    """The mean of each cluster; one that lost all its points stays where it was."""
    clients, clusters, width = centre_KCD.shape
    cell = segments.client * clusters + cluster
    size = torch.bincount(cell, minlength=clients * clusters).unsqueeze(1)
    total = points_ND.new_zeros(clients * clusters, width).index_add(0, cell, points_ND)
    return torch.where(size > 0, total / size.clamp_min(1), centre_KCD.flatten(0, 1)).view_as(centre_KCD)


def _first_smallest(value_N: Tensor, segments: Segments) -> Tensor:
    """Where each client's smallest value stands, int64 [K]; N for a client without any."""
    least = value_N.new_full((segments.clients,), float("inf")).scatter_reduce(0, segments.client, value_N, "amin")
    place = torch.arange(segments.total, device=value_N.device)
    place = torch.where(value_N == least[segments.client], place, segments.total)
    first = torch.full((segments.clients,), segments.total, device=value_N.device)
    return first.scatter_reduce(0, segments.client, place, "amin")
