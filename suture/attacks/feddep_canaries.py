"""Canaries for what FedDEP promises by itself: edges that were drawn once, and means of groups with noise on them.

edges   m pairs of nodes that know nobody else, linked or not, and a twin of one of the two, alone. An edge *shows* if it is
in a graph that the client trains on, among the pairs it learns from, or if the embeddings of the twins differ:
all of it, whatever the client does first and last, must come from one draw.
means   m clients of `smallest` nodes each. One node's embedding is w or -w, the farthest a row of length one can be
replaced by; it begins as a cluster of its own, as only clusters that are too small must not be told by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from suture.attacks.canaries import coins, enlarged
from suture.core.kernels import Segments
from suture.core.message import Nothing
from suture.core.streams import Streams, generator
from suture.graph.batch import GraphBatch, Pairs
from suture.method import Clients, Task
from suture.methods.feddep import FedDep
from suture.privacy.audited import Heard

DIFFERENT = 1e-4
"""How far apart embeddings of twins are at least, where one of them has a neighbour; rounding is far below."""


def edge_canaries(method: FedDep, graph: GraphBatch, task: Task, canaries: int, seed: int) -> Heard:
    """Whether each canary's edge shows (1) or not (0) in what one client of FedDEP computes from."""
    included, first = coins(canaries, seed), graph.num_nodes + 3 * torch.arange(canaries)
    drawn = torch.randint(graph.num_nodes, (canaries, 2), generator=generator(seed, "features of canaries"))
    larger = enlarged(graph, drawn[:, [0, 1, 0]].flatten(), 3 * canaries, role=0)
    there = torch.stack([first, first + 1])[:, included]
    weight = graph.edge_weight
    larger = replace(
        larger,
        edge_index=torch.cat([graph.edge_index, there, there.flip(0)], 1),
        edge_weight=None if weight is None else torch.cat([weight, weight.new_ones(2 * there.shape[1])]),
        pairs=_with_pairs(graph.pairs, there),
    )
    fresh = Clients(larger, Nothing(larger.ids), Streams.of(task.seed, larger.ids, "init"), task)
    clients = Clients(larger, method.init_clients(fresh), Streams.of(task.seed, larger.ids, "ask", 1), task, 1)
    rows = method.embeddings(clients)
    shown = (rows[first] - rows[first + 2]).abs().amax(1) > DIFFERENT
    for trained_on in (method.seen(clients, training=True), _as_it_was(method, clients)):
        shown |= _linked(trained_on.edge_index, first)
        if trained_on.pairs is not None:
            shown |= _linked(trained_on.pairs.nodes[:, trained_on.pairs.label == 1], first)
    return Heard(shown.double(), included)


def _with_pairs(pairs: Pairs | None, there: Tensor) -> Pairs | None:
    """Link prediction learns from edges: canaries too."""
    if pairs is None:
        return None
    one = pairs.label.new_ones(there.shape[1])
    return Pairs(
        torch.cat([pairs.nodes, there], 1), torch.cat([pairs.label, one]), torch.cat([pairs.role, one.to(pairs.role.dtype)])
    )


def _as_it_was(method: FedDep, clients: Clients[Any]) -> GraphBatch:
    """The graph of which a generator's client hides nodes, put together again."""
    impaired = method.impaired(clients)
    source, target = impaired.graph.edge_index
    kept = torch.stack([impaired.remaining[source], impaired.remaining[target]])
    lost = torch.stack([impaired.hidden.col.long(), impaired.remaining[impaired.hidden.row]])
    return replace(clients.graph, edge_index=torch.cat([kept, lost], 1), edge_weight=None, pairs=None)


def _linked(ends: Tensor, first: Tensor) -> Tensor:
    """Which canaries' two nodes, the second after the first, are linked in either direction; bool [m]."""
    low, high = ends.amin(0), ends.amax(0)
    return torch.isin(first, low[high == low + 1])


def mean_canaries(method: FedDep, canaries: int, seed: int) -> Heard:
    """Scores of what FedDEP tells of groups with canaries in them: 1 where one was put in, 0 where not, and the noise."""
    size, width, places = method.smallest, method.d_z, method.clusters
    included = coins(canaries, seed)
    rows = torch.zeros(canaries, size, width)
    rows[:, 1:, -1] = 1.0
    rows[:, 0, 0] = torch.where(included, 1.0, -1.0)
    cluster = torch.full((canaries, size), min(1, places - 1))
    cluster[:, 0] = 0
    centres = torch.zeros(canaries, places, width)
    for place in set(cluster[0].tolist()):
        centres[:, place] = rows[:, cluster[0] == place].mean(1)
    names = [f"canary-{k}" for k in range(canaries)]
    segments = Segments(torch.arange(canaries + 1) * size)
    rng = Streams.of(seed, names, "ask", 1)
    centres, cluster, told = method.groups(rows.flatten(0, 1), centres, cluster.flatten(), segments, rng)
    # Every place in which the canary's group is told: of the same mean with other noise an attacker takes the mean.
    mine = centres[torch.arange(canaries), cluster.view(canaries, size)[:, 0]].unsqueeze(1)
    of_it = (centres == mine).all(2).double()
    heard = (told[:, :, 0].double() * of_it).sum(1) / of_it.sum(1)
    others = 0.0 if width > 1 else (size - 1) / 2
    return Heard(heard * size / 2 - others + 0.5, included)
