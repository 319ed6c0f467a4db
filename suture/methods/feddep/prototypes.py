"""Proto (FedDEP, section 3.2): clients show each other means of clusters of their nodes' embeddings, once.

Without Proto the same embeddings are what generated ones are compared with (`without_proto.py`).
Legend: K clients, M of them in all, N nodes, D width of an embedding, C clusters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments
from suture.core.message import Kind, Message
from suture.core.streams import Streams
from suture.core.tree import Tree, tile
from suture.graph.batch import GraphBatch
from suture.nn.backbones import Sage
from suture.privacy.mechanisms import noise_like, secret_means
from suture.settings import TrainingSettings
from suture.training.local import train_locally
from suture.training.optimisers import fresh_moments


@dataclass(frozen=True)
class Prototypes(Message):
    """Line 1, client to server: the means of its clusters [K, C, D]."""

    centres: Annotated[Tensor, Kind.PROTOTYPES]


@dataclass(frozen=True)
class OthersPrototypes(Message):
    """Line 2, server to client: the prototypes of all other clients, or of those in its group, [K, M - 1, C, D]."""

    centres: Annotated[Tensor, Kind.PROTOTYPES]


def for_everybody_else(told: Prototypes, most: int | None = None) -> OthersPrototypes:
    """Line 2, in the order of the clients' names; zeros, as of a client that tells nothing, up to `most` others."""
    order = sorted(told.ids)
    others = [[j for j, name in enumerate(order) if name != own] for own in told.ids]
    index = torch.tensor(others, dtype=torch.int64, device=told.centres.device).view(len(order), len(order) - 1)
    found = told.select(order).centres[index]
    absent = 0 if most is None else max(0, most - found.shape[1])
    return OthersPrototypes(told.ids, F.pad(found, (0, 0, 0, 0, 0, absent)))


def among_groups(told: Prototypes, groups: Sequence[Sequence[str]]) -> OthersPrototypes:
    """Line 2 inside each group of clients; whoever's group is smaller than others hears zeros in the last places."""
    known = frozenset(told.ids)
    parts = [told.select([name for name in group if name in known]) for group in groups]
    most = max(len(part.ids) for part in parts) - 1
    return OthersPrototypes.concat([for_everybody_else(part, most) for part in parts]).select(told.ids)


def careful(
    z_ND: Tensor, centres: Tensor, cluster: Tensor, segments: Segments, smallest: int, sigma: float, rng: Streams
) -> tuple[Tensor, Tensor, Tensor]:
    """Line 1, of k-means' clusters: (centres, cluster of each node, what is told); as they are if `smallest` is 0."""
    if not smallest:
        return centres, cluster, centres
    centres, cluster = without_small(z_ND, centres, cluster, segments, smallest)
    told = told_centres(centres, segments, smallest)
    return centres, cluster, noisy(told, cluster, segments, smallest, sigma, rng)


def without_small(
    z_ND: Tensor, centres_KCD: Tensor, cluster_N: Tensor, segments: Segments, smallest: int
) -> tuple[Tensor, Tensor]:
    """(centres [K, C, D], cluster of each node [N]) after clusters of fewer than `smallest` nodes have joined the nearest.

    The smallest goes first, until all are large enough or one is left. A place that nobody has any more, and one that was
    empty, holds the centre of the largest cluster once more.
    """
    clusters = centres_KCD.shape[1]
    centres, cluster = centres_KCD.double(), cluster_N.clone()
    for k, (start, end) in enumerate(itertools.pairwise(segments.bounds)):
        z, mine = z_ND[start:end].double(), cluster[start:end]
        size = torch.bincount(mine, minlength=clusters)
        while int((size > 0).sum()) > 1 and int(size[size > 0].min()) < smallest:
            least = int(torch.where(size > 0, size, end - start + 1).argmin())
            apart = (centres[k] - centres[k, least]).square().sum(1)
            apart[size == 0], apart[least] = torch.inf, torch.inf
            into = int(apart.argmin())
            mine[mine == least] = into
            centres[k, into] = z[mine == into].mean(0)
            size = torch.bincount(mine, minlength=clusters)
        centres[k, size == 0] = centres[k, int(size.argmax())].clone()
    return centres.to(centres_KCD.dtype), cluster


def told_centres(centres_KCD: Tensor, segments: Segments, smallest: int) -> Tensor:
    """What may leave: nothing, so zeros, of a client with fewer than `smallest` nodes."""
    return centres_KCD * (segments.ptr.diff() >= smallest).view(-1, 1, 1)


def noisy(centres_KCD: Tensor, cluster_N: Tensor, segments: Segments, smallest: int, sigma: float, rng: Streams) -> Tensor:
    """With N(0, (2 sigma / smallest)^2) in every entry; a client that tells nothing tells no noise either.

    A mean of `smallest` rows of length one changes by 2 / smallest at most where one of them is replaced. A place that holds
    the largest cluster once more has its noise too: of the same centre with other noise one could take the mean. At a real
    owner the noise is its own secret.
    """
    if sigma == 0:
        return centres_KCD
    clients, clusters, _ = centres_KCD.shape
    if rng.secret is not None:
        noised = secret_means(centres_KCD, 2 / smallest, sigma, rng.secret, "feddep.prototype_sigma")
    else:
        noised = centres_KCD + noise_like({"centres": centres_KCD}, sigma * 2 / smallest, rng)["centres"]
    noised = noised * (segments.ptr.diff() >= smallest).view(-1, 1, 1)
    size = torch.bincount(segments.client * clusters + cluster_N, minlength=clients * clusters).view(clients, clusters)
    largest = noised[torch.arange(clients, device=noised.device), size.argmax(1)]
    return torch.where((size == 0).unsqueeze(2), largest.unsqueeze(1), noised)


def without_excess(centres: Tensor) -> Tensor:
    """No longer than one, as every mean of embeddings is: what noise has added to a prototype's length tells nothing."""
    length: Tensor = torch.linalg.vector_norm(centres, dim=-1, keepdim=True)
    return centres / length.clamp_min(1)


def trained_embeddings(network: Sage, initial: Tree, graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Tensor:
    """Line 1: z_v of every node [N, D], from a network that every client trains alone."""
    start = tile(initial, len(graph.ids), graph.device)
    moments = fresh_moments(start, settings)
    params, _, _ = train_locally(graph, start, moments, lambda p, batch: batch.loss(network, p), settings, rng)
    with torch.no_grad():
        return F.normalize(torch.relu(network.embed(params, graph)), dim=1)
