"""What owners tell each other over links that they know, by way of the server: rows of numbers under addresses.

    1  every client says which addresses it has links to                                            Wanted
    2  the server tells everybody all addresses that anybody wants; a client knows its own          Asked
    3  clients offer a row for each of their nodes that is wanted                                   Offered
    4  the server hands every client the rows it wants; of several holders of a node their mean     Heard

The server sees addresses and rows, and who wants what: that is what a cut tells it of the links between owners. See
`suture.graph.boundary` for what an address is; after private matching it says nothing of an id.
Legend: W addresses a client wants, O nodes it offers, C numbers of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from suture.core.kernels import Segments, pointers, segments_of
from suture.core.message import Kind, Message, Rows
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.boundary import Boundary


@dataclass(frozen=True)
class Wanted(Message):
    """Client to server: the addresses it has links to, ascending and each once, int64 rows."""

    addresses: Annotated[Rows, Kind.ADDRESSES]


@dataclass(frozen=True)
class Asked(Message):
    """Server to client: all addresses that anybody wants, ascending, int64 rows."""

    addresses: Annotated[Rows, Kind.ADDRESSES]


@dataclass(frozen=True)
class Offered(Message):
    """Client to server: rows [O, C] of class probabilities, and the addresses of the nodes they are of."""

    addresses: Annotated[Rows, Kind.ADDRESSES]
    rows: Annotated[Rows, Kind.PREDICTIONS]


@dataclass(frozen=True)
class Heard(Message):
    """Server to client: for each address it wants the row [W, C], and whether anybody offered one, float [W]."""

    rows: Annotated[Rows, Kind.PREDICTIONS]
    offered: Annotated[Rows, Kind.COUNTS]


def known_to(graph: GraphBatch) -> Boundary:
    """The links that clients know; a run in which nobody could know any has asked for something that is not there."""
    if graph.boundary is None:
        raise ConfigError(
            "no owner knows a link to another's node, so there is nothing to stitch: set partition.boundary=both, or import "
            "edges whose ends are other owners' ids"
        )
    return graph.boundary


def wanted_by(graph: GraphBatch) -> Rows:
    """Line 1."""
    known, clients = known_to(graph), len(graph.ids)
    owner = graph.segments.client[known.node]
    pairs = torch.unique(torch.stack([owner, known.foreign], 1), dim=0)
    return Rows(pairs[:, 1], segments_of(pairs[:, 0], clients).ptr)


def asked_of_all(wanted: Wanted) -> Asked:
    """Line 2, for everybody who wants anything."""
    everything = torch.unique(wanted.addresses.values)
    count = len(wanted.ids)
    lengths = torch.full((count,), everything.numel())
    return Asked(wanted.ids, Rows(everything.repeat(count), pointers(lengths)))


def own_among(graph: GraphBatch, asked: Asked) -> Tensor:
    """Line 3: which nodes are asked for, flat positions ascending."""
    known, segments = known_to(graph), Segments(asked.addresses.ptr)
    found = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for k in range(len(graph.ids)):
        start, end = graph.segments.bounds[k : k + 2]
        first, last = segments.bounds[k : k + 2]
        found[start:end] = torch.isin(known.address[start:end], asked.addresses.values[first:last])
    return torch.nonzero(found).squeeze(1)


def routed(wanted: Wanted, offered: Offered) -> Heard:
    """Line 4."""
    # In an order of its own, so that means round alike whatever the order of the clients.
    offered = offered.select(sorted(offered.ids))
    address, rows = offered.addresses.values, offered.rows.values
    held, place = torch.unique(address, return_inverse=True)
    total = rows.new_zeros(held.numel(), rows.shape[1]).index_add_(0, place, rows)
    holders = torch.bincount(place, minlength=held.numel()).to(rows.dtype)
    wish = wanted.addresses.values.contiguous()
    at = torch.searchsorted(held, wish).clamp_max(max(held.numel() - 1, 0))
    found = held[at] == wish if held.numel() else torch.zeros_like(wish, dtype=torch.bool)
    heard = rows.new_zeros(wish.numel(), rows.shape[1])
    heard[found] = total[at[found]] / holders[at[found]].unsqueeze(1)
    return Heard(wanted.ids, Rows(heard, wanted.addresses.ptr), Rows(found.to(rows.dtype), wanted.addresses.ptr))


def sums_over_links(graph: GraphBatch, heard: Heard) -> Tensor:
    """For every node the sum of what was heard over its links, and in the last column over how many, [N, C + 1]."""
    row = torch.cat([heard.rows.values, heard.offered.values.unsqueeze(1)], 1)
    out = row.new_zeros(graph.num_nodes, row.shape[1])
    return out.index_add_(0, known_to(graph).node, row[places_among(graph, wanted_by(graph))])


def places_among(graph: GraphBatch, wanted: Rows) -> Tensor:
    """The place of every link's address among those that clients want, which are in the order of (client, address), [B]."""
    known = known_to(graph)
    listed = torch.stack([Segments(wanted.ptr).client, wanted.values], 1)
    links = torch.stack([graph.segments.client[known.node], known.foreign], 1)
    rank: Tensor = torch.unique(torch.cat([listed, links]), dim=0, return_inverse=True)[1]
    return rank[listed.shape[0] :]


def within(rows: Rows) -> Rows:
    """Addresses in ascending order inside each client."""
    order = torch.argsort(rows.values, stable=True)
    order = order[torch.argsort(Segments(rows.ptr).client[order], stable=True)]
    return Rows(rows.values[order], rows.ptr)
