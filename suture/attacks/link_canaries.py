"""Canaries for what owners tell over links that they know: predictions with noise, and sums of features with noise.

rows    m nodes without own neighbours, of which stitching tells a row in every step. Put in or not, a canary is a node of
another class, and others answer it the opposite over its links: rows as far apart as they can be.
links   m such nodes that differ by one known link, over which the farthest row comes that is listened to.
sums    m nodes whose far too long row stands in FedGCN's sums under `FOREIGN` addresses, and whose own row is told with
those of `OWN` neighbours in it; left out, all of these rows are zero. Or the same node always, with one link more or
less. Numbers of links are told without noise and are the same either way.

The auditor knows the canaries, and so what would be told of them without noise. A score is how far what was told lies on
the way from one that is left out (0) to one that is put in (1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suture.attacks.canaries import FAR_TOO_LONG, coins, enlarged
from suture.core.kernels import SparseMatrix
from suture.core.message import Nothing, Rows
from suture.core.streams import Streams
from suture.graph.batch import Features, GraphBatch
from suture.graph.boundary import Boundary
from suture.method import Clients, Task
from suture.methods.averaging import Averaging
from suture.methods.fedgcn import FedGcn
from suture.methods.links import Asked, wanted_by
from suture.methods.links import Heard as HeardOver
from suture.methods.stitching import longest_heard, shortened
from suture.privacy.audited import Heard

COLD = 1e-6
"""The temperature at which a prediction is one class: whoever sends models can send one that is so sure."""
CANDIDATES = 200
"""Nodes among which two are looked for that a network tells apart."""
LINKS = 9
"""Of a canary whose rows others decide."""
OWN, FOREIGN = 4, 4
"""Neighbours of a canary that stands in sums; with d = 9, its own row is just as long as it may be."""


def between(told: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Scores [m] of what was told [m, ...]; a canary of which nothing depends on being in has 0."""
    way = (inside - outside).flatten(1).double()
    score: Tensor = ((told - outside).flatten(1).double() * way).sum(1) / way.square().sum(1).clamp_min(1e-12)
    return score


def _addresses(first: int, count: int) -> Tensor:
    """Addresses that no node of a graph has: those are not negative."""
    return -1 - torch.arange(first, first + count)


def _with_links(graph: GraphBatch, larger: GraphBatch, node: Tensor, foreign: Tensor, own: Tensor) -> GraphBatch:
    """A larger graph with the known links of the first one and these; `own` are the addresses of the nodes it has more."""
    known = graph.boundary or Boundary(node[:0], foreign[:0], torch.arange(graph.num_nodes))
    links = (torch.cat([known.node, node]), torch.cat([known.foreign, foreign]), torch.cat([known.address, own]))
    return replace(larger, boundary=Boundary(*links))


# Stitching


@dataclass(frozen=True)
class Stitch:
    """Canaries in one client's graph, as some world has them."""

    graph: GraphBatch
    canaries: int
    answers: Tensor
    """What others answer over each canary's links, [m, C]."""

    def told(self, method: Averaging[Any, Any, Any, Any], task: Task, steps: int) -> tuple[Tensor, Tensor]:
        """(what is told of canaries, the same without its noise) in every step, [m, steps, C]."""
        graph, ids, first = self.graph, self.graph.ids, self.graph.num_nodes - self.canaries
        address = _addresses(0, self.canaries)
        asked = Asked(ids, Rows(address, torch.tensor([0, address.numel()])))
        state = method.init_clients(Clients(graph, Nothing(ids), Streams.of(task.seed, ids, "init"), task))
        down: Any = method.deploy(method.init_server(task), ids)
        told, plain = [], []
        for number in range(1, steps + 1):
            clients = Clients(graph, state, Streams.of(task.seed, ids, "ask", number), task, number)
            state, _ = method.stitch_asked_for(clients, asked)
            clients = replace(clients, state=state)
            told.append(method.stitch_offer(clients, down)[1].rows.values)
            with torch.no_grad():
                plain.append(shortened(method.stitched(clients, method.assemble(clients, down)), 1.0)[first:])
            state, _ = method.stitch_hear(clients, self._heard())
        return torch.stack(told, 1), torch.stack(plain, 1)

    def _heard(self) -> HeardOver:
        """Over the canaries' links their answers, over all others nothing."""
        wanted = wanted_by(self.graph)
        number = -1 - wanted.values - self.canaries  # of a canary's link, counted from the first
        mine = wanted.values < 0
        each = torch.div(number, LINKS, rounding_mode="floor")
        rows = torch.where(mine.unsqueeze(1), self.answers[each.clamp(0, self.canaries - 1)], 0.0)
        return HeardOver(self.graph.ids, Rows(rows, wanted.ptr), Rows(mine.float(), wanted.ptr))


def row_canaries(method: Averaging[Any, Any, Any, Any], graph: GraphBatch, task: Task, canaries: int, seed: int) -> Heard:
    """Of nodes whose told rows are all others if they are in."""
    method = _cold(method)
    like, rows = _told_apart(method, graph, task)
    answers = longest_heard(method.training.stitch_sigma) * torch.stack([-rows[1], rows[1]])

    def world(included: Tensor) -> Stitch:
        node = graph.num_nodes + torch.arange(canaries).repeat_interleave(LINKS)
        larger = enlarged(graph, like[included.long()], canaries, role=0)
        linked = _with_links(graph, larger, node, _addresses(canaries, canaries * LINKS), _addresses(0, canaries))
        return Stitch(linked, canaries, answers[included.long()])

    return _stitched(method, task, world, coins(canaries, seed))


def stitch_link_canaries(
    method: Averaging[Any, Any, Any, Any], graph: GraphBatch, task: Task, canaries: int, seed: int
) -> Heard:
    """Of nodes that have one known link more if they are in."""
    method = _cold(method)
    like, rows = _told_apart(method, graph, task)
    answers = (-longest_heard(method.training.stitch_sigma) * rows[1]).repeat(canaries, 1)

    def world(included: Tensor) -> Stitch:
        number = torch.nonzero(included).squeeze(1)
        larger = enlarged(graph, like[1].repeat(canaries), canaries, role=0)
        foreign = -1 - canaries - LINKS * number
        linked = _with_links(graph, larger, graph.num_nodes + number, foreign, _addresses(0, canaries))
        return Stitch(linked, canaries, answers)

    return _stitched(method, task, world, coins(canaries, seed))


def _cold(method: Averaging[Any, Any, Any, Any]) -> Averaging[Any, Any, Any, Any]:
    return replace(method, training=replace(method.training, stitch_temperature=COLD))


def _told_apart(method: Averaging[Any, Any, Any, Any], graph: GraphBatch, task: Task) -> tuple[Tensor, Tensor]:
    """(two nodes [2], what is predicted of them [2, C]) as nodes without links, of which unlike classes are predicted."""
    like = torch.arange(min(CANDIDATES, graph.num_nodes))
    alone = enlarged(graph, like, like.numel(), role=0)
    nobody = torch.empty(0, dtype=torch.int64)
    alone = _with_links(graph, alone, nobody, nobody, _addresses(0, like.numel()))
    rows = Stitch(alone, like.numel(), torch.zeros(1, task.classes)).told(method, task, 1)[1][:, 0]
    apart = torch.cdist(rows, rows)
    pair = torch.tensor(divmod(int(apart.argmax()), like.numel()))
    return like[pair], rows[pair]


def _stitched(
    method: Averaging[Any, Any, Any, Any], task: Task, world: Callable[[Tensor], Stitch], included: Tensor
) -> Heard:
    steps = method.training.stitch
    inside, outside = (world(torch.full_like(included, there)).told(method, task, steps)[1] for there in (True, False))
    told, _ = world(included).told(method, task, steps)
    return Heard(between(told, inside, outside), included)


# FedGCN


def gcn_canaries(method: FedGcn, graph: GraphBatch, task: Task, canaries: int, seed: int, *, node: bool) -> Heard:
    """Of nodes whose rows are in all sums they can be in, or in none; or (not `node`) of one known link."""
    own, foreign = (OWN if method.hops == 2 else 0, FOREIGN) if node else (0, 1)
    included = coins(canaries, seed)

    def told(there: Tensor, noisy: bool) -> Tensor:
        made = _summed(method, graph, there, own, foreign, node=node)
        return _sums_told(method, made, task, there.numel(), own, foreign, noisy=noisy)

    inside, outside = (told(torch.full_like(included, there), False) for there in (True, False))
    return Heard(between(told(included, True), inside, outside), included)


def _summed(method: FedGcn, graph: GraphBatch, included: Tensor, own: int, foreign: int, *, node: bool) -> GraphBatch:
    """One client's graph and after it nodes without features, which fill up sums, then each canary and its neighbours."""
    canaries, blank = included.numel(), max(own, method.fewest)
    empty = graph.num_nodes + torch.arange(blank)
    canary = graph.num_nodes + blank + torch.arange(canaries) * (1 + own)
    long = torch.full((canaries, 1 + own), FAR_TOO_LONG * method.clip)
    if node:
        long[:, 0] *= included
    larger = _with_first_feature(graph, torch.cat([torch.zeros(blank), long.flatten()]))
    near = torch.where(included.unsqueeze(1), canary.unsqueeze(1) + 1 + torch.arange(own), empty[:own])
    ends = torch.stack([canary.repeat_interleave(own), near.flatten()])
    larger = replace(larger, edge_index=torch.cat([graph.edge_index, ends, ends.flip(0)], 1))
    linked = canary if node else torch.where(included, canary, empty[0])
    address = _addresses(canaries, canaries * foreign)
    fillers = empty[1 : method.fewest]
    at = torch.cat([linked.repeat_interleave(foreign), fillers.repeat_interleave(address.numel())])
    named = _addresses(canaries * (1 + foreign), larger.num_nodes - graph.num_nodes)
    named[canary - graph.num_nodes] = _addresses(0, canaries)
    return _with_links(graph, larger, at, address.repeat(1 + fillers.numel()), named)


def _with_first_feature(graph: GraphBatch, values: Tensor) -> GraphBatch:
    """One client's graph with a node more for each value, which is all that there is of its features: the first."""
    larger, count = enlarged(graph, None, values.numel(), role=0), graph.num_nodes
    matrix = larger.x.matrix
    if isinstance(matrix, SparseMatrix):
        some = values != 0
        rowptr = matrix.rowptr.clone()
        rowptr[count + 1 :] += some.cumsum(0).to(rowptr.dtype)
        col = torch.cat([matrix.col, matrix.col.new_zeros(int(some.sum()))])
        matrix = SparseMatrix(rowptr, col, torch.cat([matrix.val, values[some]]), matrix.columns)
    else:
        matrix = matrix.clone()
        matrix[count:, 0] = values
    return replace(larger, x=Features(matrix, larger.segments))


def _sums_told(
    method: FedGcn, graph: GraphBatch, task: Task, canaries: int, own: int, foreign: int, *, noisy: bool
) -> Tensor:
    """The first feature of every sum that a canary can be in, [m, foreign], and of its own row, [m, foreign + 1]."""
    ids = graph.ids
    state = method.init_clients(Clients(graph, Nothing(ids), Streams.of(task.seed, ids, "init"), task))
    first, second = (Clients(graph, state, Streams.of(task.seed, ids, "ask", n), task, n) for n in (1, 2))
    posting = method if noisy else replace(method, sigma=0.0)
    wanted = wanted_by(graph)
    if method.together:
        address, rows = wanted.values, posting.post_together(first, Asked(ids, wanted))[1].rows[0]
    else:
        sums = posting.post_sums(first, Nothing(ids))[1]
        address, rows = sums.addresses.values, sums.rows.values
    mine = _addresses(canaries, canaries * foreign)
    parts = [rows[torch.searchsorted(address.contiguous(), mine), 0].view(canaries, foreign)]
    if method.hops == 2 and own:
        named = _addresses(0, canaries).flip(0)
        if noisy:
            asked = Asked(ids, Rows(named, torch.tensor([0, canaries])))
            whole = method.post_around(second, asked)[1].rows.values.flip(0)
        else:
            place = graph.num_nodes - canaries * (1 + own) + torch.arange(canaries) * (1 + own)
            whole = shortened(method.aggregated(graph, None), method.clip)[place]
        parts.append(whole[:, :1])
    return torch.cat(parts, 1)
