"""Link prediction: which edges train, validate and test, and pairs that are no edges.

Held-out edges disappear from message passing; every held-out edge gets one sampled non-edge beside it. All draws come
from each client's own stream, so a client's task is the same alone and in a batch. A pair is scored alike whichever of its
nodes comes first, so a graph whose edges have a direction is refused. Legend: K clients, P pairs.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from suture.core.kernels import Segments, pointers, segments_of
from suture.core.streams import Streams
from suture.errors import ConfigError, PartitionError
from suture.graph.batch import GraphBatch, Pairs
from suture.settings import SplitSettings

TRAIN, VALIDATION, TEST = 1, 2, 3
# Random pairs that turn out to be edges are drawn again this often; what is left then is dropped.
REDRAWS = 8


def pair_keys(pairs: Tensor, nodes: int) -> Tensor:
    """One number per unordered pair, int64 [P]."""
    return pairs.min(0).values * nodes + pairs.max(0).values


def sample_non_edges(graph: GraphBatch, counts: Tensor, edge_keys: Tensor, rng: Streams) -> Tensor:
    """Up to `counts[k]` random pairs inside client k that are not in the sorted `edge_keys`, [2, P] sorted by client."""
    ptr = pointers(counts)
    owner = Segments(ptr).client
    start, size = graph.segments.ptr[:-1][owner], graph.sizes[owner]
    pairs = torch.zeros(2, owner.numel(), dtype=torch.int64, device=graph.device)
    missing = torch.ones(owner.numel(), dtype=torch.bool, device=graph.device)
    for attempt in range(REDRAWS):
        drawn = (rng.fork("non-edge", attempt).uniform(ptr, 2) * size.unsqueeze(1)).long() + start.unsqueeze(1)
        pairs = torch.where(missing, drawn.T, pairs)
        keys = pair_keys(pairs, graph.num_nodes)
        found = torch.searchsorted(edge_keys, keys).clamp_max(max(edge_keys.numel() - 1, 0))
        is_edge = edge_keys[found] == keys if edge_keys.numel() else torch.zeros_like(missing)
        missing = is_edge | (pairs[0] == pairs[1])
        if not bool(missing.any()):
            break
    return pairs[:, ~missing]


def hide_links(graph: GraphBatch, shares: SplitSettings, seed: int) -> GraphBatch:
    """Divide every client's edges into roles, keep only training edges for message passing, and add non-edges."""
    if bool(graph.directed.any()):
        raise ConfigError(
            "link prediction cannot tell from which node to which an edge goes, and the edges of this graph have a "
            "direction; set preprocess.direction=mirror"
        )
    source, target = graph.edge_index
    once = torch.nonzero(source < target).squeeze(1)
    once = once[torch.argsort(pair_keys(graph.edge_index[:, once], graph.num_nodes))]
    keys = pair_keys(graph.edge_index[:, once], graph.num_nodes)
    segments = segments_of(graph.segments.client[source[once]], len(graph.ids))
    _check(graph, segments, shares)
    rng = Streams.of(seed, graph.ids, "links", device=graph.device)
    once = once[rng.fork("shuffle").shuffle(segments.ptr)]
    edges = graph.edge_index[:, once]
    share = (segments.place + 0.5) / segments.ptr.diff()[segments.client]
    last_train, last_validation = shares.train, shares.train + shares.val
    role = torch.where(share < last_train, TRAIN, torch.where(share < last_validation, VALIDATION, TEST)).to(torch.int8)

    pieces, labels, roles = [edges], [torch.ones(edges.shape[1])], [role]
    for held_out in (VALIDATION, TEST):
        counts = segments_of(segments.client[role == held_out], len(graph.ids)).ptr.diff()
        absent = sample_non_edges(graph, counts, keys, rng.fork("role", held_out))
        pieces.append(absent)
        labels.append(torch.zeros(absent.shape[1]))
        roles.append(torch.full((absent.shape[1],), held_out, dtype=torch.int8))
    pairs = Pairs(torch.cat(pieces, 1), torch.cat(labels).to(graph.device), torch.cat([r.to(graph.device) for r in roles]))
    kept, weight = edges[:, role == TRAIN], None
    if graph.edge_weight is not None:
        weight = graph.edge_weight[once[role == TRAIN]].repeat(2)
    return dataclasses.replace(graph, edge_index=torch.cat([kept, kept.flip(0)], 1), pairs=pairs, edge_weight=weight)


def hide_from_uncut(uncut: GraphBatch, clients: GraphBatch, positions: Tensor) -> GraphBatch:
    """The uncut graph without any edge that some client holds out; all other edges train.

    `positions` [N] says where each client node stands in the uncut graph.
    """
    if clients.pairs is None:
        raise ValueError("the clients' links have not been hidden yet")
    held_out = positions[clients.pairs.nodes[:, clients.pairs.role != TRAIN]]
    source, target = uncut.edge_index
    keep = ~torch.isin(pair_keys(uncut.edge_index, uncut.num_nodes), pair_keys(held_out, uncut.num_nodes))
    once = keep & (source < target)
    edges = torch.stack([source[once], target[once]])
    role = torch.full((edges.shape[1],), TRAIN, dtype=torch.int8, device=uncut.device)
    pairs = Pairs(edges, torch.ones(edges.shape[1], device=uncut.device), role)
    weight = uncut.edge_weight[keep] if uncut.edge_weight is not None else None
    return dataclasses.replace(uncut, edge_index=uncut.edge_index[:, keep], pairs=pairs, edge_weight=weight)


def _check(graph: GraphBatch, segments: Segments, shares: SplitSettings) -> None:
    enough = (segments.ptr.diff() * shares.train) >= 1
    poor = [name for name, fine in zip(graph.ids, enough.tolist(), strict=True) if not fine]
    if poor:
        raise PartitionError(
            f"{poor[0]} is left without a training edge for link prediction; "
            "use fewer clients, a larger split.train or another partition"
        )
